"""A model's safety heads: the first heads by Refusal Contribution, Refusal attribution, or the paper's two Ships.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708). Both of its
scores come with every ranking: the paper's figure is coloured by Generalized Ships. In models whose refusal heads are
known, Refusal Contribution and Refusal attribution find more of them, the second most (see the page on safety heads).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr

from mechheads.engine.cached_runs import CachedRuns
from mechheads.heads import HeadId, Heads
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.notices import interrupted_after, until_interrupted, warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.agreement import in_top
from mechheads.results.kinds import kind_of
from mechheads.results.metadata import refused_of
from mechheads.results.scores import HeadScores, RankBy
from mechheads.results.shown import Rows, titled
from mechheads.results.stats import bounded_interval, mean_over_prompts
from mechheads.safety.heads.ablations import PAPER_KINDS, ablation_metadata, ablation_name, ablation_of
from mechheads.safety.heads.contribution import contribution_of
from mechheads.safety.heads.refusal_attribution import attribution_of
from mechheads.safety.heads.ships import (
    SafetyJob,
    ShipsKind,
    check_r,
    contrast_of,
    generalized_ships_of,
    ships_of,
)
from mechheads.safety.openings import count_refusals
from mechheads.safety.requests import Requests, Side, Template

ShipsScore = Literal["ships", "generalized_ships"]
Score = Literal["ships", "generalized_ships", "ships_contrast", "refusal_contribution", "refusal_attribution"]
SCORES: dict[Score, Callable[[SafetyJob], HeadScores]] = {
    "ships": ships_of,
    "generalized_ships": generalized_ships_of,
    "ships_contrast": contrast_of,
    "refusal_contribution": contribution_of,
    "refusal_attribution": attribution_of,
}
_OF_REFUSALS = ("refusal_contribution", "refusal_attribution")
"""Scores that do not need the pass that measures Ships."""
_BOTH = ShipsKind(with_kl=True, r=1)
"""Both of the paper's scores in one pass."""
_SHIPS, _ANGLE, _CONTRAST = (
    (name, f"{name}_low", f"{name}_high") for name in ("ships", "generalized_ships", "ships_contrast")
)
_OF_CONTRAST = {
    **dict(zip(_CONTRAST, ("score", "ci_low", "ci_high"), strict=True)),
    **{f"ships_contrast_{name}": name for name in ("p_value", "q_value", "p_family", "values", "cluster")},
    "ships_harmless": "harmless",
}
"""The variables of the contrast, and their names in ``HeadScores``."""


@analysis
def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    harmless: Requests = None,
    score: Score | None = None,
    intervention: InterventionLike | None = None,
    template: Template | None = None,
    heads: Heads | None = None,
) -> SafetyHeads:
    """The ``k`` heads with the largest score, with Ships and Generalized Ships of every head.

    Args:
        k: the number of heads to report and draw.
        harmless: a harmless look-alike of each request, in the same order: Ships are then measured after these too,
            and the result has the contrast as well. The package's requests have look-alikes of their own.
        score: the score that ranks the heads. ``"refusal_contribution"``, ``"refusal_attribution"`` and
            ``"ships_contrast"``, which is ``mh.ships(harmless=)``, find most of the heads that are known to refuse;
            ``"ships"`` and ``"generalized_ships"`` are the paper's. By default, ``"refusal_attribution"`` for the
            package's requests; ``"refusal_contribution"`` if you give look-alikes; and ``"ships"`` for requests of
            your own without them.
        intervention: as in ``mh.ships``; by default ``"scaling"`` for the two scores of refusals, and the default of
            ``mh.ships`` for the others. ``"refusal_attribution"`` ranks by its own two ablations, and uses this one for
            Ships alone.
        template: as in ``mh.ships``; by default the paper's, ``"query"``, for the paper's scores, and the model's chat
            template, if it has one, for the others.
        requests, heads: as in ``mh.ships``.

    Returns:
        The scores, and ``in_top``: the share of resamples of the prompts in which a head is among the top k, except for
        ``"generalized_ships"``, which has no values of single prompts. A model that refuses nothing has a largest score
        too, so it also writes short answers to up to 16 of the requests: ``refused`` in the provenance counts those
        that it refuses, by the rules (see ``SafetyHeads``).

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"])
    >>> len(safety.heads()), safety.provenance["score"], safety.generalized_ships.dims
    (2, 'ships', ('layer', 'head'))
    """
    of_requests: Score = "refusal_attribution" if requests is None else "ships"
    chosen = score or (of_requests if harmless is None else "refusal_contribution")
    check_at_least(1, k=k)
    check_known("score", chosen, get_args(Score))
    if chosen in ("refusal_contribution", "ships_contrast") and requests is not None and harmless is None:
        raise ValueError(
            f'harmless is missing: score="{chosen}" compares each request with a harmless look-alike; give one for '
            'each, or choose score="ships"'
        )
    rule = ablation_of(intervention or ("scaling" if chosen in _OF_REFUSALS else "undifferentiated"))
    used: Template | None = "query" if chosen in get_args(ShipsScore) and template is None else template
    look_alikes = _look_alikes(model, requests, harmless, used)
    job = SafetyJob(model, Side.of(model, requests, used), rule, heads, look_alikes, kind=_BOTH)
    return next(iter(_ranked({chosen: job}, k, chosen).values()))


@analysis
def compare_ablations(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    harmless: Requests = None,
    ablations: Sequence[InterventionLike] = PAPER_KINDS,
    score: ShipsScore = "ships",
    template: Template = "query",
    heads: Heads | None = None,
) -> dict[str, SafetyHeads]:
    """``mh.safety_heads`` by one of the paper's scores for several ablations, which share one intact run.

    Args:
        ablations: interventions as in ``mh.ships``, each by its name once, whatever its epsilon.
        score: the one of the paper's two scores that ranks the heads.
        model, requests, k, harmless, template, heads: as in ``mh.safety_heads``.

    Returns:
        The result of each ablation, by its name, as in ``mh.safety_heads``; ``mh.safety.overlap`` compares them. After
        Ctrl-C, the ablations so far.
    """
    check_at_least(1, k=k)
    check_known("score", score, get_args(ShipsScore))
    some = [ablation_of(one, "ablations") for one in ablations] if isinstance(ablations, (list, tuple)) else []
    rules = {ablation_name(rule): rule for rule in some}
    if not rules or len(rules) < len(some):
        raise ValueError(f'ablations is {ablations!r}; give a list without repeats, such as ["scaling", "zero"]')
    side, look_alikes = Side.of(model, requests, template), _look_alikes(model, requests, harmless, template)
    shared: dict[str, Any] = {"look_alikes": look_alikes, "kind": _BOTH, "runs": CachedRuns(model, side.prompts)}
    return _ranked({name: SafetyJob(model, side, rule, heads, **shared) for name, rule in rules.items()}, k, score)


def _look_alikes(model: Model, requests: Requests, harmless: Requests, template: Template | None) -> Side | None:
    """The look-alikes of requests: ``harmless``, or the package's for the package's requests."""
    if harmless is None and requests is not None:
        return None
    return Side.of(model, harmless, template, "safe", "harmless")


def _ranked(jobs: Mapping[str, SafetyJob], k: int, score: Score) -> dict[str, SafetyHeads]:
    """The heads ranked by a score, for each job of the same requests, with the number that the model refuses."""
    first = next(iter(jobs.values()))
    check_r(1, first)
    if first.look_alikes is not None:
        _ = first.sides
    ranked = dict[str, SafetyHeads]()
    for name, job in jobs.items():
        ranked[name] = _with_ships(job, k, score)
        if ranked[name].missing or ranked[name].provenance["interrupted"]:
            return ranked
    refused = None
    with until_interrupted() as interrupts:
        refused = count_refusals(first.model, first.requests)
    if interrupts.interrupted:
        warn(interrupted_after("every head", "how many requests the model refuses is not known"))
    metadata = {"interrupted": True} if interrupts.interrupted else {"refused": refused} if refused else {}
    return {name: each.with_provenance(**metadata) for name, each in ranked.items()}


def _with_ships(job: SafetyJob, k: int, score: Score) -> SafetyHeads:
    """The score of a job's heads, with both Ships, and the contrast if there are look-alikes; NaN after Ctrl-C."""
    scores, seed = SCORES[score](job), current().seed
    stopped, known = scores.provenance["interrupted"], np.isfinite(scores.scores.values)
    if stopped and score in _OF_REFUSALS:
        columns = {name: np.full(known.shape, np.nan) for name in (*_SHIPS, *_ANGLE)}
    else:
        ships = job.after_requests
        low, high = bounded_interval(ships.kl, ships.tokens.cluster, bounds=kind_of("ships").bounds)
        measured = mean_over_prompts(ships.kl), low, high, *ships.angle
        columns = dict(zip((*_SHIPS, *_ANGLE), measured, strict=True))
        stopped = stopped or bool(np.isnan(columns["ships"][known]).any())
    if scores.values is not None:
        columns["in_top"] = in_top(scores, k, seed=seed)
    data = scores.dataset.assign({name: (("layer", "head"), values) for name, values in columns.items()})
    if job.look_alikes is not None and not stopped:
        contrast = scores if score == "ships_contrast" else contrast_of(job)
        stopped = contrast.provenance["interrupted"]
        names = {old: name for name, old in _OF_CONTRAST.items()} | {"prompt": "pair"}  # angles have no prompts
        data = data.assign(contrast.dataset[list(_OF_CONTRAST.values())].rename(names).data_vars)
        data = data.assign_attrs({"ships_contrast": contrast.dataset.attrs["statistics"]})
    metadata = ablation_metadata(job.intervention) | {"k": k, "score": score, "seed": seed}
    name = titled(f"safety heads, {ablation_name(job.intervention)}", scores.provenance)
    return SafetyHeads(data.assign_attrs(name=name, kind="safety")).with_provenance(**metadata, interrupted=stopped)


class SafetyHeads(HeadScores):
    """The score that ranks a model's safety heads, with Ships and Generalized Ships of every head.

    ``score`` is the requested score; ``values`` has the score of each prompt, except for Generalized Ships. Further
    variables over (layer, head): ``ships`` in nats, ``generalized_ships`` in degrees, and with look-alikes
    ``ships_contrast``, each with ``_low`` and ``_high``; ``ships_harmless``, Ships after the look-alikes; and
    ``in_top``, the share of resamples of the prompts in which a head is among the top k. ``top`` and ``heads`` give
    the requested ``k`` heads by default.
    ``provenance["refused"]`` counts the requests that the intact model refuses, by the rules, in short answers: ``n``
    of ``of``. It is missing if no answer could be judged.
    """

    KIND = "safety"

    @property
    def k(self) -> int:
        """The requested number of heads."""
        return self.provenance["k"]

    @property
    def generalized_ships(self) -> xr.DataArray:
        """Generalized Ships in degrees, (layer, head)."""
        return self.dataset["generalized_ships"]

    @property
    def contrast(self) -> HeadScores | None:
        """Ships of each request against its look-alike, as ``mh.ships(harmless=)`` gives it; None without these."""
        if "ships_contrast" not in self.dataset:
            return None
        data = self.dataset[list(_OF_CONTRAST)].rename({**_OF_CONTRAST, "pair": "prompt"})
        data = data.assign(harmful=self.dataset["ships"])
        metadata = {"name": f"Ships against look-alikes, {self.provenance['ablation']}", "kind": "ships_contrast"}
        metadata |= {"unit": kind_of("ships_contrast").unit, "statistics": self.dataset.attrs["ships_contrast"]}
        return HeadScores(data.assign_attrs(metadata))

    def top(self, k: int | None = None, by: RankBy = "score", columns: Sequence[str] | None = None) -> Rows:
        """The ``k`` rows of ``to_dataframe`` with the largest score; see ``HeadScores.top``."""
        return super().top(self.k if k is None else k, by, columns)

    def heads(self, k: int | None = None, by: RankBy = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest score."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> Rows:
        """One row per head, as in ``HeadScores``, with both Ships, the contrast, their intervals and ``in_top``."""
        names = [*_SHIPS, *_ANGLE, "ships_harmless", *_CONTRAST, "ships_contrast_p_family", "in_top"]
        more = {name: self.dataset[name].values.ravel() for name in names if name in self.dataset}
        return Rows(super().to_dataframe().assign(**more))

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        refused = refused_of(self.provenance.get("refused"))
        notes = [f"Requests: {refused}."] if refused else []
        table, ranked_by = self.top(), self.provenance["score"]
        own = (ranked_by, f"{ranked_by}_low", f"{ranked_by}_high", f"{ranked_by}_p_family")
        return table.drop(columns=[name for name in table if name in own]), [
            *notes,
            f"The {self.k} with the largest {ranked_by.replace('_', ' ')}:",
        ]
