"""Ships and Generalized Ships: how much each head's ablation changes a model's answer to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``ablation="undifferentiated"``, ``epsilon``, ``through`` |
| Scaling Contribution, W_v times epsilon | ``ablation="scaling"``, ``epsilon`` |
| Ships(q, h), one request | ``ships(...).values`` |
| Generalized Ships(Q, h), a set of requests | ``generalized_ships(...).scores`` |

Both measure any change of the answer, not only safety: a head that every answer needs scores high too. See
``refusal_contribution`` for a score that corrects for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.engine.racing import Race
from mechheads.heads import HeadId, HeadLike
from mechheads.limits import Budget, Limits, Workers
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import cluster_draws, clustered_interval, mean_over_prompts, top_shares
from mechheads.safety.heads.ablations import Ablation, Kind, Through
from mechheads.safety.heads.groups import Group
from mechheads.safety.heads.measure_ships import Measured, Pass, measure
from mechheads.safety.heads.race_ships import race_ships
from mechheads.safety.requests.requests import Requests, Template

Score = Literal["ships", "generalized_ships"]
_SHIPS = ("ships", "ships_low", "ships_high")
_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")
_RESAMPLES = {"ships": 1000, "generalized_ships": 100}


@alone
def ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Kind = "undifferentiated",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
    top: int | Race | None = None,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt.

    Args:
        requests: a list of texts, ``mh.Prompts`` (used as they are), or ``None`` for the requests of the package.
        ablation: ``"undifferentiated"`` (the head's queries times epsilon, so that it attends equally to all tokens
            so far), ``"scaling"`` (its output times epsilon, so that it writes almost nothing), or ``"zero"``,
            ``"mean"`` or ``"resample"`` for comparison, as in ``mh.ablate``.
        epsilon: the factor of the first two, 0 or more; the paper's code uses 1e-4 here.
        through: whether q or k is scaled by ``"undifferentiated"``; for one query head the scores are the same.
        group: ``"query"``: one query head at a time, without changing other heads that share its keys and values;
            ``"kv"``: all query heads that share a key/value head at once. Each of them gets the common score, and
            ``top`` and ``heads`` name the group once, by its first head.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, budget, progress, workers, top: as in ``mh.sweep``; with ``group="kv"``, ``top`` counts groups.
            Generalized Ships cannot race, because it is no mean over requests.
        seed: for ``"resample"`` and the order of requests in a race.

    Returns:
        Scores in nats [layer, head], with ``values`` per prompt and intervals over prompts. p and q are NaN: a KL is
        never below 0, so there is no null to test it against. After Ctrl-C, the heads so far; the others are NaN.

    Raises:
        ValueError: if an argument does not fit. It is raised before any head is ablated.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    way = Ablation(ablation, epsilon, through, group, seed)
    asked = Pass.of(model, requests, template, heads=heads, budget=Limits.of(budget, workers), progress=progress)
    race = Race.of(top)
    raced = None if race is None else next(race_ships(asked, [way], race))
    found = measure(asked, [way], with_kl=True)[0] if raced is None else raced[0]
    scores = HeadScores.from_values(
        found.kl,
        name=f"Ships, {ablation}",
        kind="ships",
        cluster=found.tokens.cluster,
        seed=seed,
        provenance=make_provenance(found.provenance, seed=seed),
    )
    return scores if raced is None else raced[1].result(scores, progress)


@alone
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Kind = "undifferentiated",
    r: int = 1,
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
) -> HeadScores:
    """Generalized Ships: the angle by which the states of a whole set of requests rotate without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: how many singular vectors are compared (the paper's code: 1); must be less than the number of different
            prompts.
        requests, ablation, epsilon, through, group, template, heads, budget, progress, workers: as in ``mh.ships``.
            (The paper's code uses epsilon 1e-5 in its search for groups of heads.)
        seed: for ``"resample"``.

    Returns:
        Degrees [layer, head], from 0 to 90 r, with jackknife intervals over prompts. There are no per-prompt values, p
        or q, because an angle belongs to the whole set. NaN if the angle is not defined.

    Raises:
        ValueError: if an argument does not fit, or the number of different prompts is not larger than ``r``: then the
            singular vectors span the same space in any run, and the angle is undefined.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> angle = mh.safety.generalized_ships(model, requests, heads="L0H0", progress=False)
    >>> angle.unit, 0 < angle["L0H0"]["score"] < 90
    ('degrees', True)
    """
    way = Ablation(ablation, epsilon, through, group, seed)
    limits = Limits.of(budget, workers)
    found = measure(Pass.of(model, requests, template, heads=heads, budget=limits, progress=progress), [way], r=r)[0]
    angle, low, high = found.angle
    return HeadScores.from_scores(
        angle,
        ci_low=low,
        ci_high=high,
        name=f"Generalized Ships, {ablation}",
        kind="generalized_ships",
        provenance=found.provenance,
    )


@alone
def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablation: Kind = "undifferentiated",
    score: Score = "ships",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
    top: int | Race | None = None,
) -> SafetyHeads:
    """Ships and Generalized Ships of every head from one pass, and the ``k`` heads with the largest score.

    Args:
        k: how many heads to report and draw; with ``group="kv"``, how many groups.
        score: which of the two scores ranks the heads.
        requests, ablation, epsilon, through, group, template, r, heads, budget, seed, progress, workers: as in
            ``mh.ships``
            and ``mh.safety.generalized_ships``.
        top: find the heads with the largest Ships by racing, as in ``mh.ships``; at least ``k``. Heads that a race
            drops have no Generalized Ships and no ``in_top``.

    Returns:
        Both scores, and ``in_top``: the share of resamples of the prompts in which a head is among the top k.

    Raises:
        ValueError: as in ``mh.ships`` and ``mh.safety.generalized_ships``, or if the race is for another score or for
            fewer than ``k`` heads.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"], progress=False)
    >>> len(safety.heads()), safety.generalized_ships.dims
    (2, ('layer', 'head'))
    """
    ranking = Ranking(k, score, r, seed, Race.of(top))
    way = Ablation(ablation, epsilon, _through(through, ablation), group, seed)
    limits = Limits.of(budget, workers)
    return _rank(Pass.of(model, requests, template, heads=heads, budget=limits, progress=progress), [way], ranking)[
        ablation
    ]


@alone
def compare_ablations(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablations: Sequence[Kind] = ("undifferentiated", "scaling"),
    score: Score = "ships",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
    top: int | Race | None = None,
) -> dict[str, SafetyHeads]:
    """``safety_heads`` for several ablations, which share one intact run.

    Args:
        ablations: the kinds of ablation, without repeats.
        model, requests, k, score, epsilon, through, group, template, r, heads, budget, seed, progress, workers, top: as
            in ``mh.safety_heads``.

    Returns:
        The result of each ablation, by its name; ``mh.safety.overlap`` shows how far they agree.

    Raises:
        ValueError: as in ``mh.safety_heads``, and if an ablation is given twice or none is given.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"], progress=False)
    >>> list(found)
    ['undifferentiated', 'scaling']
    """
    ranking = Ranking(k, score, r, seed, Race.of(top))
    if isinstance(ablations, str) or not len(ablations) or len(set(ablations)) < len(ablations):
        raise ValueError(f'ablations is {ablations!r}; give a list without repeats, such as ["scaling", "zero"]')
    ways = [Ablation(kind, epsilon, _through(through, kind), group, seed) for kind in ablations]
    limits = Limits.of(budget, workers)
    return _rank(Pass.of(model, requests, template, heads=heads, budget=limits, progress=progress), ways, ranking)


@dataclass(frozen=True)
class Ranking:
    """How heads are ranked, and how certain the top ``k`` are; see ``safety_heads``.

    Raises:
        ValueError: if ``k`` or ``score`` is not valid, or the race does not fit them.
    """

    k: int
    score: Score
    r: int
    seed: int
    race: Race | None

    def __post_init__(self) -> None:
        check_at_least(1, k=self.k)
        check_known("score", self.score, _RESAMPLES)
        if self.race is None:
            return
        if self.score != "ships":
            raise ValueError(
                f"top and score={self.score!r} are both given, but only Ships can race: an angle belongs to all "
                "requests at once; leave one of them out"
            )
        if self.race.top < self.k:
            raise ValueError(f"top is {self.race.top}, but k is {self.k}; give k, or more, as top")


def _through(through: Through, ablation: Kind) -> Through:
    """``through`` for an ablation that acts on q or k; the others ignore it."""
    return through if ablation == "undifferentiated" else "q"


def _rank(asked: Pass, ways: Sequence[Ablation], by: Ranking) -> dict[str, SafetyHeads]:
    """Both scores of every head for each ablation, from one pass, with the top heads."""
    cluster = asked.prompts.tokens(asked.model).cluster
    draws = cluster_draws(cluster, _RESAMPLES[by.score], by.seed)
    if by.race is not None:
        raced = race_ships(asked, ways, by.race, r=by.r)
        return {
            way.kind: run.result(_safety_heads(found, by, draws), asked.progress)
            for way, (found, run) in zip(ways, raced, strict=True)
        }
    of_angles = draws if by.score == "generalized_ships" else None
    measured = measure(asked, ways, with_kl=True, r=by.r, draws=of_angles)
    return {way.kind: _safety_heads(found, by, draws) for way, found in zip(ways, measured, strict=True)}


def _safety_heads(found: Measured, by: Ranking, draws: Float[np.ndarray, "draw prompt"]) -> SafetyHeads:
    kind = found.provenance["ablation"]
    low, high = clustered_interval(found.kl, found.tokens.cluster)
    columns = dict(zip((*_SHIPS, *_ANGLES), (mean_over_prompts(found.kl), low, high, *found.angle), strict=True))
    variables = {name: (("layer", "head"), values) for name, values in columns.items()}
    about: dict[str, Any] = {
        "name": f"safety heads, {kind}",
        "kind": "safety",
        "provenance": make_provenance(found.provenance, k=by.k, score=by.score, seed=by.seed),
    }
    if by.score == "ships":
        resampled = np.moveaxis(found.kl @ draws.T / draws.sum(1), -1, 0)
        variables["in_top"] = (("layer", "head"), _in_top(found, resampled, by.k))
        shared = {"cluster": found.tokens.cluster, "seed": by.seed, "variables": variables}
        return SafetyHeads.from_values(found.kl, **shared, **about)
    variables["in_top"] = (("layer", "head"), _in_top(found, found.resampled, by.k))
    angle, angle_low, angle_high = found.angle
    return SafetyHeads.from_scores(
        angle, unit="degrees", ci_low=angle_low, ci_high=angle_high, variables=variables, **about
    )


def _in_top(
    found: Measured, resampled: Float[np.ndarray, "draw layer head"], k: int
) -> Float[np.ndarray, "layer head"]:
    """The share of resamples in which a head, or its group, is among the first ``k``."""
    size = found.provenance["together"]
    return np.repeat(top_shares(resampled[..., ::size], k), size, axis=1)


class SafetyHeads(HeadScores):
    """Ships and Generalized Ships of every head.

    ``score`` is the requested score; for Ships, ``values`` has the score of each prompt. Further variables over
    (layer, head): ``ships`` in nats and ``generalized_ships`` in degrees, each with ``_low`` and ``_high``; and
    ``in_top``, the share of resamples of the prompts in which a head is among the top k. ``top`` and ``heads`` give the
    requested ``k`` heads by default.
    """

    KIND = "safety"

    @property
    def k(self) -> int:
        """How many heads were requested."""
        return self.provenance["k"]

    @property
    def generalized_ships(self) -> xr.DataArray:
        """Generalized Ships in degrees, (layer, head)."""
        return self.dataset["generalized_ships"]

    def top(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> pd.DataFrame:
        """The ``k`` rows of ``to_dataframe`` with the largest score."""
        return super().top(self.k if k is None else k, by)

    def heads(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest score."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head, as in ``HeadScores``, with both scores, their intervals and ``in_top``."""
        names = (*_SHIPS, *_ANGLES, "in_top")
        return super().to_dataframe().assign(**{name: self.dataset[name].values.ravel() for name in names})
