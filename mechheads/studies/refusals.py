"""What an atlas asks about refusals, in which stages it measures them, and ``Refusals``: what it then knows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from mechheads.heads import HeadId
from mechheads.interventions.basic import InterventionLike, InterventionName
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.results.about import refuses
from mechheads.results.agreement import in_top, overlap
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import ranks
from mechheads.results.tables import Curves, TableResult
from mechheads.safety.answers.answering import AnswerSettings
from mechheads.safety.answers.refusal import LEAST_REQUESTS, RefusalTest, attack_curve, refusal_tests
from mechheads.safety.heads.ablations import Group, Groups
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.heads.safety_heads import compare_ablations
from mechheads.safety.requests.openings import count_refusals
from mechheads.safety.requests.prompts import Requests, Side, opened
from mechheads.safety.requests.requests import Split, load_requests
from mechheads.studies.study import finished

RANKINGS = {
    "refusal_attribution": "refusal attribution",
    "ships_undifferentiated": "Ships, undifferentiated",
    "ships_scaling": "Ships, scaling",
}
"""The views of an atlas whose first heads are tested, and what a sentence calls each."""
TOGETHER = "all rankings together"
REFUSAL_TABLES = ("first_heads", "overlap", "tests", "curve")
"""The tables that an atlas with refusals writes."""


@dataclass(frozen=True)
class RefusalSettings:
    """What ``mh.build_atlas(refusals=)`` measures besides Ships: whether a model refuses, and which heads that needs.

    Args:
        k: number of heads at the top of each ranking.
        critical: how many of each ranking's first heads are ablated together in the tests.
        group: ``"query"`` ranks and ablates single query heads, ``"kv"`` all query heads that share a key/value head;
            ``k`` and ``critical`` then count groups.

    >>> mh.studies.RefusalSettings(critical=4)
    RefusalSettings(k=10, critical=4, group='query')
    """

    k: int = 10
    critical: int = 6
    group: Group = "query"

    def __post_init__(self) -> None:
        check_at_least(1, k=self.k, critical=self.critical)
        check_known("group", self.group, get_args(Group))

    def groups(self, model: Model) -> Groups:
        """What is ablated as one.

        Raises:
            ValueError: if the model has too few heads to compare the tested ones with others.
        """
        groups = Groups.of(model, self.group)
        if self.critical > (units := len(groups.units(None))) // 2:
            raise ValueError(
                f"critical is {self.critical}; the model has {units} {groups.unit}s, so give {units // 2} or fewer"
            )
        return groups


@dataclass(frozen=True)
class Sizes:
    """How much is measured: every n-th request, tokens of an answer, random draws, and points of the curve."""

    ranked_every: int = 3
    tested_every: int = 1
    tokens: int = 20
    draws: int = 2
    curve: tuple[int, ...] = (1, 3)
    draws_of_curve: int = 1


FULL = Sizes()
QUICK = Sizes(ranked_every=6, tested_every=3, tokens=12, draws=1, curve=(1,))


@dataclass(frozen=True)
class RequestsByUse:
    """Requests to rank heads, and others to be answered: of each kind a list of harmful and one of harmless ones."""

    ranked: tuple[list[str], list[str]]
    answered: tuple[list[str], list[str]]

    @classmethod
    def of(cls, requests: Requests, sizes: Sizes) -> RequestsByUse:
        """The package's requests; or of every three given ones two to rank heads, and one to be answered."""
        if requests is None:
            return cls(_of_package("train", sizes.ranked_every), _of_package("test", sizes.tested_every))
        given = opened(requests)
        if isinstance(given, Prompts):
            raise ValueError("requests are prompts, but refusals= needs texts; give texts, a name or a file")
        harmful = list(given)
        harmless = _safe(requests, harmful)
        for name, some in (("harmful", harmful), ("harmless", harmless)):
            if len(some) < 3 * LEAST_REQUESTS:
                whose = f"{requests} has" if isinstance(requests, (str, Path)) else "there are"
                raise ValueError(f"requests: {whose} {len(some)} {name} requests; give at least {3 * LEAST_REQUESTS}")

        def part(some: list[str], is_test: bool, every: int) -> list[str]:
            return [text for i, text in enumerate(some) if (i % 3 == 2) == is_test][::every]

        return cls(
            (part(harmful, False, sizes.ranked_every), part(harmless, False, sizes.ranked_every)),
            (part(harmful, True, sizes.tested_every), part(harmless, True, sizes.tested_every)),
        )


def _of_package(split: Split, every: int) -> tuple[list[str], list[str]]:
    """Every n-th harmful and every n-th harmless request of the package."""
    harmful, harmless = ([one.text for one in load_requests(name, split)][::every] for name in ("harmful", "harmless"))
    return harmful, harmless


def _safe(requests: Any, harmful: list[str]) -> list[str]:
    """The safe part of a public set; the package's harmless requests if there is none."""
    safe = harmful
    if isinstance(requests, (str, Path)):
        with suppress(ValueError):  # of a set of harmful requests alone
            safe = list(load_requests(requests, part="safe").texts)
    return [one.text for one in load_requests("harmless")] if safe == harmful else safe


@dataclass(frozen=True, eq=False, repr=False)
class Refusals(TableResult):
    """A model's refusals: whether there are any, and what is left of them without the first heads of each ranking.

    Attributes:
        k, critical: as in ``RefusalSettings``.
        openings: how the model's refusals begin, from drawn answers.
        tests: for each ranking, whether refusals depend on its first heads together; and for the first heads of all
            rankings together.
        curve: attack success with more and more heads ablated, in the order of Refusal attribution.
        provenance: what is needed to repeat it; ``refused`` says how many of a few requests the model refuses.
    """

    KIND = "refusals"
    name, unit = "refusals", KINDS[KIND].unit

    k: int
    critical: int
    openings: tuple[str, ...]
    tests: dict[str, RefusalTest]
    curve: Curves | None
    provenance: dict[str, Any]

    @property
    def table(self) -> pd.DataFrame:  # type: ignore[override]
        """One row for each condition of each test: ``without`` names the ranking whose first heads are ablated."""
        parts = [test.table.assign(without=name) for name, test in self.tests.items()]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    def tables(self, rankings: Mapping[str, HeadScores]) -> dict[str, pd.DataFrame]:
        """The tables of ``REFUSAL_TABLES`` that have rows.

        Args:
            rankings: the scores that rank heads, by the names of ``RANKINGS``.
        """
        tests = [test.table.assign(heads=name) for name, test in self.tests.items()]
        made = {
            "first_heads": first_heads(rankings, self.k),
            "overlap": overlap(rankings, self.k) if len(rankings) > 1 else pd.DataFrame(),
            "tests": pd.concat(tests, ignore_index=True) if tests else pd.DataFrame(),
            "curve": pd.DataFrame() if self.curve is None else self.curve.table,
        }
        return {name: table for name, table in made.items() if len(table)}

    def answers(self) -> pd.DataFrame:
        """The answers of the intact model, and of the model without the first heads of each ranking."""
        some = list(self.tests.values())[:1]
        parts = [("no heads", test.answers.query("condition == 'intact'")) for test in some]
        parts += [(name, test.answers.query("condition == 'ablated'")) for name, test in self.tests.items()]
        every = [part.drop(columns="condition").assign(without=name) for name, part in parts]
        return pd.concat(every, ignore_index=True) if every else pd.DataFrame()


def first_heads(rankings: Mapping[str, HeadScores], k: int) -> pd.DataFrame:
    """The heads among the first ``k`` of any ranking, those of the most rankings first."""
    places: dict[str, dict[HeadId, int]] = {}
    stable: dict[str, np.ndarray] = {}
    for name, scores in rankings.items():
        places[name] = dict(zip(scores.heads(k), ranks(scores.top(k)["score"]), strict=True))
        stable[name] = in_top(scores, k, seed=scores.provenance.get("seed", 0))
    count = {head: sum(head in of for of in places.values()) for of in places.values() for head in of}
    order = sorted(count, key=lambda head: (-count[head], min(of.get(head, k + 1) for of in places.values())))
    rows = []
    for head in order:
        row: dict[str, Any] = {"head": str(head), "rankings": count[head]}
        for name, of in places.items():
            row[f"rank by {name}"] = of.get(head, pd.NA)
            row[f"in_top by {name}"] = float(stable[name][head.layer, head.head])
        rows.append(row)
    return pd.DataFrame(rows)


_ALONE: InterventionName = "scaling"
"""The ablation of heads that no ablation has ranked: the first heads of all rankings."""


class RefusalStages:
    """The stages, which fill in an atlas one after the other.
    Ships uses the paper's template; everything about refusals uses the model's own chat template, if it has one.
    """

    def __init__(self, model: Model, atlas: Any, asked: RefusalSettings, requests: RequestsByUse, sizes: Sizes) -> None:
        self.model, self.atlas, self.asked, self.requests, self.sizes = model, atlas, asked, requests, sizes
        self.answers = AnswerSettings(max_new_tokens=sizes.tokens)

    def run(self) -> None:
        """All of them; without a refusal, only the first."""
        found = self.count()
        if refuses(found.provenance["refused"]) is not False:
            self.rank()
            self.test(found)

    def count(self) -> Refusals:
        """Whether the model refuses."""
        asked, unit = self.asked, self.asked.groups(self.model).unit
        with self.atlas.stage("refusals counted"):
            refused = count_refusals(self.model, Side.of(self.model, self.requests.answered[0], self.answers.template))
        about = make_provenance(
            self.model, k=asked.k, critical=asked.critical, group=asked.group, unit=unit, refused=refused
        )
        found = Refusals(asked.k, asked.critical, (), {}, None, about)
        self.atlas.refusals = found
        return found

    def rank(self) -> None:
        """Every ranking of the heads."""
        model, atlas, asked, (harmful, _) = self.model, self.atlas, self.asked, self.requests.ranked
        with atlas.stage("refusal attribution"):
            atlas.refusal_attribution = refusal_attribution(model, harmful, group=asked.group)
        with atlas.stage("Ships"):
            atlas.safety = compare_ablations(model, harmful, asked.k, group=asked.group)
        for scores in atlas.safety.values():
            finished(scores)

    def test(self, found: Refusals) -> None:
        """Answers without the first heads of each ranking, and with more and more heads ablated."""
        model, atlas, asked, sizes, rankings = self.model, self.atlas, self.asked, self.sizes, self.atlas.rankings
        sets = {name: scores.heads(asked.critical) for name, scores in rankings.items()}
        ablations: dict[str, InterventionLike] = {name: _kind(scores) for name, scores in rankings.items()}
        everything = tuple(dict.fromkeys(head for heads in sets.values() for head in heads))
        if 2 * len(everything) <= len(asked.groups(model).units(None)):
            sets[TOGETHER], ablations[TOGETHER] = everything, _ALONE
        else:
            atlas.note(
                f"too few other {found.provenance['unit']}s to compare the first of all rankings with: not tested"
            )
        harmful, harmless = self.requests.answered
        with atlas.stage("tests"):
            tests = refusal_tests(
                model,
                sets,
                harmful,
                harmless,
                intervention=ablations,
                group=asked.group,
                draws=sizes.draws,
                answers=self.answers,
            )
        openings = rankings["refusal attribution"].provenance["openings"]
        shown = tuple(model.tokenizer.decode(opening).strip() for opening in openings)
        atlas.refusals = found = replace(found, openings=shown, tests=tests)
        for test in tests.values():
            finished(test)
        with atlas.stage("attack curve"):
            curve = attack_curve(
                model,
                rankings["refusal attribution"].heads(asked.critical),
                harmful,
                harmless[::4],
                most=[*(k for k in sizes.curve if k < asked.critical), asked.critical],
                intervention=_ALONE,
                group=asked.group,
                draws=sizes.draws_of_curve,
                answers=self.answers,
            )
        atlas.refusals = replace(found, curve=curve)
        finished(curve)
        atlas.note(
            f"answers have up to {sizes.tokens} tokens; over-refusal along the curve is on {len(harmless[::4])} "
            "look-alikes"
        )


def _kind(scores: HeadScores) -> InterventionName:
    """The ablation that a ranking comes from; ``_ALONE`` for one that comes from several, or from none."""
    by = scores.provenance.get("ablation")
    return _ALONE if by is None or isinstance(by, list) else by
