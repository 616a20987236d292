"""A model's refusals: whether there are any, how brittle they are, which heads they depend on, and what else breaks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.model.analysis import analysis
from mechheads.model.model import Model, source_of
from mechheads.results.scores import HeadScores
from mechheads.safety.answers.answering import AnswerSettings
from mechheads.safety.answers.attack_curve import attack_curve
from mechheads.safety.answers.brittleness import refusal_brittleness
from mechheads.safety.answers.refusal import LEAST_REQUESTS, refusal_tests
from mechheads.safety.heads.ablations import PAPER_KINDS, Ablation, Kind
from mechheads.safety.heads.direction import refusal_direction
from mechheads.safety.heads.groups import Group, Groups
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.heads.safety_heads import compare_ablations
from mechheads.safety.requests.loaders import open_requests
from mechheads.safety.requests.requests import Split, load_requests
from mechheads.studies.safety_result import ATTRIBUTION, SafetyStudy
from mechheads.studies.study import stop_if_partial, study_of, teller

TOGETHER = "all rankings together"
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


def safety_settings(model: Model, requests: str | Path | None, *, quick: bool, **settings: object) -> dict[str, str]:
    """What a study of refusals is of: the model with its weights, the requests and the settings of ``safety_study``."""
    asked = repr(_asked(requests, QUICK if quick else FULL))
    own = {} if requests is None else {"requests": hashlib.sha256(asked.encode()).hexdigest()[:16]}
    return study_of(model, study="safety", quick=quick, **settings, **own)


@analysis
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
