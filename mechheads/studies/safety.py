"""A model's refusals: whether there are any, how brittle they are, which heads they depend on, and what else breaks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechheads.heads import HeadId
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import source_of
from mechheads.results.agreement import in_top, overlap
from mechheads.results.curves import Curves
from mechheads.results.dataset import RANGE
from mechheads.results.html import head_names
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult
from mechheads.safety.answers.answering import AnswerSettings
from mechheads.safety.answers.attack_curve import attack_curve
from mechheads.safety.answers.brittleness import RefusalBrittleness, refusal_brittleness
from mechheads.safety.answers.refusal import LEAST_REQUESTS, RefusalTest, refusal_tests
from mechheads.safety.heads.ablations import PAPER_KINDS, Ablation, Kind
from mechheads.safety.heads.direction import refusal_direction
from mechheads.safety.heads.groups import Group, Groups
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.heads.safety_heads import SafetyHeads, compare_ablations
from mechheads.safety.requests.loaders import open_requests
from mechheads.safety.requests.requests import Split, load_requests
from mechheads.studies.safety_text import Section, report_sections
from mechheads.studies.study import Stages, save_parts, stop_if_partial, study_of, teller

if TYPE_CHECKING:
    from mechheads.model.model import Model

ATTRIBUTION = "refusal attribution"
TOGETHER = "all rankings together"
_LEAST_LOST = 0.5
"""Heads carry a model's refusals only if at least this share of them turns into compliance without the heads."""
_Texts = tuple[list[str], list[str]]
"""Harmful and harmless requests."""
CRITICAL = 6
"""How many of each ranking's first heads are ablated together in the tests."""
_ALONE: Kind = "scaling"
"""The ablation of heads that no ablation has ranked: random heads, and the first heads of all rankings."""
_SHIPS, _ATTRIBUTION = 1.4, 220
"""How long Ships of a head and Refusal attribution of all heads take for each request, in tokens of answers."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured: every n-th request, tokens of an answer, random draws, and points of the curve."""

    ranked_every: int = 3
    tested_every: int = 1
    tokens: int = 20
    draws: int = 2
    draws_of_any: int = 3
    curve: tuple[int, ...] = (1, 3)
    draws_of_curve: int = 1

    def first_share(self, harmful: int, harmless: int, ranked: int, units: int) -> float:
        """The share of the first answers, those without random heads, in the whole work.

        Args:
            harmful, harmless: the numbers of requests that are answered.
            ranked: the number of harmful requests that rank heads.
            units: the number of heads, or of groups of heads.
        """
        both, points = harmful + harmless, 1 + (1 + len(self.curve)) * (1 + self.draws_of_curve)
        first = both * (1 + self.draws_of_any)
        sets = len(PAPER_KINDS) + 3
        then = both * (1 + sets * (1 + self.draws)) + (harmful + harmless // 4) * points
        ranking = ranked * (len(PAPER_KINDS) * _SHIPS * units + _ATTRIBUTION) / self.tokens
        return first / (first + then + ranking)


FULL = Sizes()
QUICK = Sizes(ranked_every=6, tested_every=3, tokens=12, draws=1, draws_of_any=2, curve=(1,), draws_of_curve=1)


@dataclass
class SafetyStudy(Stages):
    """A model's refusals and the heads they depend on, from ``mh.studies.safety_study``.

    Attributes:
        model: name of the model.
        k: number of heads at the top of each ranking; with ``group="kv"``, of groups.
        critical: how many of each ranking's first heads are ablated together in the tests.
        group: whether heads are ablated one at a time (``"query"``), or by key/value group (``"kv"``).
        unit: what is ablated as one: "head", or "key/value group".
        brittleness: whether the model refuses at all, and what is left of it without random heads.
        openings: how the model's refusals begin, from drawn answers.
        attribution: Refusal attribution: how far these openings depend on each head.
        ships: Ships, Generalized Ships and the stability of the first k heads, for each ablation.
        direction: what each head writes along the refusal direction.
        tests: for each ranking, whether refusals depend on its first heads together; and for the first heads of all
            rankings together.
        curve: attack success with more and more heads ablated, in the order of Refusal attribution.
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work.
    """

    model: str
    k: int = 10
    critical: int = 6
    group: Group = "query"
    unit: str = "head"
    brittleness: RefusalBrittleness | None = None
    openings: tuple[str, ...] = ()
    attribution: HeadScores | None = None
    ships: dict[str, SafetyHeads] = field(default_factory=dict)
    direction: HeadScores | None = None
    tests: dict[str, RefusalTest] = field(default_factory=dict)
    curve: Curves | None = None

    @property
    def has_refusal(self) -> bool | None:
        """Whether the model refuses enough harmful requests for a test; None if this is not known."""
        return None if self.brittleness is None else self.brittleness.refuses

    @property
    def carriers(self) -> dict[str, RefusalTest]:
        """The tests by which a few heads carry the refusals.

        Without these heads, compliance rises more than without random heads, the model still works, and at least half
        of its refusals turn into compliance.
        """
        return {name: test for name, test in self.tests.items() if test.critical and test.lost >= _LEAST_LOST}

    @property
    def spread(self) -> bool:
        """Whether no few heads carry the refusals: the model refuses, all tests are done, and none shows it."""
        return bool(self.has_refusal and self.tests) and not self.interrupted and not self.carriers and self._enough

    @property
    def _enough(self) -> bool:
        """Whether there are enough different requests for a test to find anything."""
        rows = next(iter(self.tests.values())).answers
        return rows.loc[rows["kind"] == "harmful", "request"].nunique() >= LEAST_REQUESTS

    @property
    def head_scores(self) -> dict[str, HeadScores]:
        """The scores of heads, by the names of their files without ``.nc``."""
        return {name.replace(", ", "_").replace(" ", "_").lower(): scores for name, scores in self.rankings.items()}

    @property
    def results(self) -> dict[str, HeadScores | TableResult]:
        """Every result, by the name of its file without ``.nc``."""
        first: dict[str, HeadScores | TableResult] = {}
        if self.brittleness is not None:
            first["refusal_brittleness"] = self.brittleness
        return {**first, **self.head_scores}

    @property
    def rankings(self) -> dict[str, HeadScores]:
        """The scores that rank heads, by name."""
        ships: dict[str, HeadScores | None] = {f"Ships, {kind}": scores for kind, scores in self.ships.items()}
        every = {ATTRIBUTION: self.attribution, **ships, "refusal direction": self.direction}
        return {name: scores for name, scores in every.items() if scores is not None}

    def overlap(self) -> pd.DataFrame:
        """The heads that every two rankings share among their first ``k``; see ``mh.safety.overlap``."""
        return overlap(self.rankings, self.k) if len(self.rankings) > 1 else pd.DataFrame()

    def first_heads(self) -> pd.DataFrame:
        """The heads among the first ``k`` of any ranking, those of the most rankings first.

        Returns:
            One row per head: its name; ``rankings``, how many have it among their first k; and for each ranking its
            rank, and ``in_top``, the share of resamples of the requests in which it is among the first k.
        """
        ranks: dict[str, dict[HeadId, int]] = {}
        stable: dict[str, np.ndarray] = {}
        for name, scores in self.rankings.items():
            ranks[name] = {head: rank for rank, head in enumerate(scores.heads(self.k), 1)}
            stable[name] = in_top(scores, self.k, seed=scores.provenance.get("seed", 0))
        count = {head: sum(head in of for of in ranks.values()) for of in ranks.values() for head in of}
        order = sorted(count, key=lambda head: (-count[head], min(of.get(head, self.k + 1) for of in ranks.values())))
        rows = []
        for head in order:
            row: dict[str, Any] = {"head": str(head), "rankings": count[head]}
            for name, of in ranks.items():
                row[f"rank by {name}"] = of.get(head, pd.NA)
                row[f"in_top by {name}"] = float(stable[name][head.layer, head.head])
            rows.append(row)
        return pd.DataFrame(rows)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: each score with its interval and its rank; rank 1 is the largest score."""
        if not self.head_scores:
            return pd.DataFrame()
        sizes = next(iter(self.head_scores.values()))
        layer, head = np.divmod(np.arange(sizes.n_layers * sizes.n_heads), sizes.n_heads)
        table = pd.DataFrame({"layer": layer, "head": head})
        for name, scores in self.head_scores.items():
            columns = ["score", "ci_low", "ci_high"]
            further = (*RANGE, "generalized_ships", "in_top", "direct")
            columns += [c for c in further if c in scores.dataset]
            for column in columns:
                suffix = "" if column == "score" else f"_{column.removeprefix('ci_')}"
                table[name + suffix] = scores.dataset[column].values.ravel()
            table[f"{name}_rank"] = table[name].rank(ascending=False, method="min")
        return table.set_index(pd.Index(head_names(table)))

    def save(self, folder: str | Path) -> list[Path]:
        """Write every result (.nc) and the tables to a folder.

        The tables are heads.csv, first_heads.csv, overlap.csv, brittleness.csv, tests.csv and curve.csv.

        Returns:
            The paths of the files.
        """
        tables = {"heads": self.to_dataframe(), "first_heads": self.first_heads(), "overlap": self.overlap()}
        if self.brittleness is not None:
            tables["brittleness"] = self.brittleness.table
        if self.tests:
            tables["tests"] = pd.concat([test.table.assign(heads=name) for name, test in self.tests.items()])
        if self.curve is not None:
            tables["curve"] = self.curve.table
        return save_parts(folder, self.results, tables, self.study)

    def sections(self) -> list[Section]:
        """The report: a question each, with its answer in a few sentences."""
        return report_sections(self)

    def summary(self) -> str:
        """The report as text."""
        lines = [f"Model      {self.model}, ablated by {self.unit}"]
        for section in self.sections():
            lines += ["", section.title, *(f"  {line}" for line in section.lines)]
        return "\n".join([*lines, "", *self.closing_lines])


def safety_settings(model: Model, requests: str | Path | None, *, quick: bool, **settings: object) -> dict[str, str]:
    """What a study of refusals is of: the model with its weights, the requests and the settings of ``safety_study``."""
    asked = repr(_asked(requests, QUICK if quick else FULL))
    own = {} if requests is None else {"requests": hashlib.sha256(asked.encode()).hexdigest()[:16]}
    return study_of(model, study="safety", quick=quick, **settings, **own)


@alone
def safety_study(
    model: Model,
    k: int = 10,
    *,
    requests: str | Path | None = None,
    group: Group = "query",
    quick: bool = False,
    critical: int = CRITICAL,
) -> SafetyStudy:
    """Whether a model refuses, how brittle that is, which heads it depends on, and what else breaks without them.

    Ctrl-C ends the work early and returns what is done. ``mechheads safety`` does the same from a shell.

    Args:
        k: number of heads at the top of each ranking.
        requests: a file or name of ``mh.safety.open_requests``, in place of the package's harmful requests. Of every
            three requests, two rank heads and one is answered. The harmless requests are those that the file labels
            as safe; of a file without them, the package's.
        group: ``"query"`` ranks and ablates single query heads, ``"kv"`` all query heads that share a key/value head;
            ``k`` and ``critical`` then count groups.
        quick: a few requests and short answers: a first look.
        critical: how many of each ranking's first heads are ablated together in the tests.

    By default, heads are ranked on the train part of the package's requests, and the answers are to the test part.
    Ships uses the paper's template. Everything about refusals uses the model's own chat template, if it has one. If the
    model refuses hardly any request, no heads are ranked.

    Raises:
        ValueError: if an argument does not fit; before the model runs.
    """
    seed = current().seed
    groups = Groups.of(model, group)
    check_at_least(1, k=k, critical=critical)
    if critical > (units := len(groups.units(None))) // 2:
        raise ValueError(f"critical is {critical}; the model has {units} {groups.unit}s, so give {units // 2} or fewer")
    if current().limits.workers is not None:
        source_of(model)
    sizes = QUICK if quick else FULL
    asked = _asked(requests, sizes)
    what = safety_settings(model, requests, quick=quick, k=k, critical=critical, group=group, seed=seed)
    study = SafetyStudy(model.name, k, critical, group, groups.unit, study=what)
    work = _Work(model, study, groups, sizes, asked)
    teller()(f"{model!r}")
    with study.interruptible():
        work.answer_first()
        if study.has_refusal:
            harmful, harmless = map(len, asked["test"])
            share = sizes.first_share(harmful, harmless, len(asked["train"][0]), units)
            teller()(f"{study.about_more(share)}; Ctrl-C keeps what is done")
            work.rank()
            work.test()
    return study


class _Work:
    """The stages of a study, and what they have in common."""

    def __init__(
        self,
        model: Model,
        study: SafetyStudy,
        groups: Groups,
        sizes: Sizes,
        asked: Mapping[str, _Texts],
    ) -> None:
        self.model, self.study, self.groups, self.sizes = model, study, groups, sizes
        self.answers = AnswerSettings(max_new_tokens=sizes.tokens)
        self.ranked_on, self.tested_on = asked["train"], asked["test"]

    def _ablation(self, kind: Kind) -> Ablation:
        return Ablation(kind, group=self.study.group)

    def answer_first(self) -> None:
        """Whether the model refuses, and what is left of it without random heads."""
        with self.study.stage("answers without random heads"):
            self.study.brittleness = refusal_brittleness(
                self.model,
                self.study.critical,
                *self.tested_on,
                ablation=self._ablation(_ALONE),
                draws=self.sizes.draws_of_any,
                answers=self.answers,
            )
        stop_if_partial(self.study.brittleness)

    def rank(self) -> None:
        """Every ranking of the heads."""
        study = self.study
        with study.stage(ATTRIBUTION):
            study.attribution = refusal_attribution(self.model, self.ranked_on[0], group=study.group)
            openings = study.attribution.provenance["openings"]
            study.openings = tuple(self.model.tokenizer.decode(opening).strip() for opening in openings)
        with study.stage("Ships"):
            ways = list(map(self._ablation, PAPER_KINDS))
            study.ships = compare_ablations(self.model, self.ranked_on[0], study.k, ablations=ways)
        for scores in study.ships.values():
            stop_if_partial(scores)
        with study.stage("refusal direction"):
            n = min(map(len, self.ranked_on))  # it takes pairs
            study.direction = refusal_direction(self.model, *(some[:n] for some in self.ranked_on), group=study.group)

    def test(self) -> None:
        """Answers without the first heads of each ranking, and with more and more heads ablated."""
        study, sizes = self.study, self.sizes
        sets = {name: scores.heads(study.critical) for name, scores in study.rankings.items()}
        ways = {name: self._ablation(_kind(scores)) for name, scores in study.rankings.items()}
        everything = tuple(dict.fromkeys(head for heads in sets.values() for head in heads))
        if 2 * len(everything) <= len(self.groups.units(None)):
            sets[TOGETHER], ways[TOGETHER] = everything, self._ablation(_ALONE)
        else:
            study.notes.append(f"too few other {study.unit}s to compare the first of all rankings with: not tested")
        with study.stage("tests"):
            study.tests = refusal_tests(
                self.model, sets, *self.tested_on, ablation=ways, draws=sizes.draws, answers=self.answers
            )
        for test in study.tests.values():
            stop_if_partial(test)
        if study.attribution is None:
            return
        harmful, harmless = self.tested_on
        with study.stage("attack curve"):
            study.curve = attack_curve(
                self.model,
                study.attribution.heads(study.critical),
                harmful,
                harmless[::4],
                most=[*(k for k in sizes.curve if k < study.critical), study.critical],
                ablation=self._ablation(_ALONE),
                draws=sizes.draws_of_curve,
                answers=self.answers,
            )
        stop_if_partial(study.curve)
        study.notes.append(
            f"answers have up to {sizes.tokens} tokens; over-refusal along the curve is on {len(harmless[::4])} "
            "look-alikes"
        )


def _kind(scores: HeadScores) -> Kind:
    """The ablation that a ranking comes from; ``_ALONE`` for one that comes from several, or from none."""
    by = scores.provenance.get("ablation")
    return _ALONE if by is None or isinstance(by, list) else by


def _requests(split: Split, every: int) -> _Texts:
    """Every n-th harmful and every n-th harmless request of the package."""
    harmful, harmless = (
        [request.text for request in load_requests(name, split)][::every] for name in ("harmful", "harmless")
    )
    return harmful, harmless


def _asked(requests: str | Path | None, sizes: Sizes) -> dict[str, _Texts]:
    """The requests that rank heads and those that are answered, harmful and harmless ones."""
    if requests is not None:
        return _parted(requests, sizes)
    return {"train": _requests("train", sizes.ranked_every), "test": _requests("test", sizes.tested_every)}


def _parted(requests: str | Path, sizes: Sizes) -> dict[str, _Texts]:
    """The requests of a file: of every three, two to rank heads and one to be answered.

    Raises:
        ValueError: if the file cannot be read, or has too few requests to test anything.
    """
    harmful = list(open_requests(requests))
    try:
        harmless = list(open_requests(requests, "safe"))
    except ValueError:  # a set of harmful requests alone
        harmless = harmful
    if harmless == harmful:
        harmless = [request.text for request in load_requests("harmless")]
    for name, some in (("harmful", harmful), ("harmless", harmless)):
        if len(some) < 3 * LEAST_REQUESTS:
            least = 3 * LEAST_REQUESTS
            raise ValueError(f"requests: {requests} has {len(some)} {name} requests; give at least {least}")
    ranked, tested = (
        [[text for i, text in enumerate(some) if (i % 3 == 2) == is_test][::every] for some in (harmful, harmless)]
        for is_test, every in ((False, sizes.ranked_every), (True, sizes.tested_every))
    )
    return {"train": (ranked[0], ranked[1]), "test": (tested[0], tested[1])}
