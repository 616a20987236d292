"""A model's safety heads: the first heads by Refusal Contribution, Refusal attribution, or the paper's two Ships.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708). Both of its
scores come with every ranking: the paper's figure is coloured by Generalized Ships. Where it is known which heads
refuse, Refusal Contribution and Refusal attribution find more of them, the second most (see the page on safety heads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.engine.held_heads import Given
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.agreement import in_top
from mechheads.results.bounded import bounded_interval
from mechheads.results.kinds import kind_of
from mechheads.results.provenance import make_provenance
from mechheads.results.refused import refused_of
from mechheads.results.scores import HeadScores, RankBy
from mechheads.results.shown import Rows
from mechheads.results.stats import cluster_draws, mean_over_prompts, top_shares
from mechheads.results.words import titled
from mechheads.safety.answers.refusing import count_refusals
from mechheads.safety.heads.ablations import (
    PAPER_KINDS,
    SafetyJob,
    ablation_name,
    ablation_of,
    about_ablation,
    held_groups,
)
from mechheads.safety.heads.contribution import contribution_of
from mechheads.safety.heads.groups import Group, Groups
from mechheads.safety.heads.measure_ships import Measured, ShipsKind, check_r, measure
from mechheads.safety.heads.refusal_attribution import attribution_of
from mechheads.safety.requests.prompts import Requests, Side, Template

ShipsScore = Literal["ships", "generalized_ships"]
Score = Literal["ships", "generalized_ships", "refusal_contribution", "refusal_attribution"]
_OF_REFUSALS = {"refusal_contribution": contribution_of, "refusal_attribution": attribution_of}
"""Scores besides Ships: functions from a job to scores of its heads."""
_DRAWS = 100
"""How many resamples of the prompts say how certain the first heads by Generalized Ships are."""
_SHIPS = ("ships", "ships_low", "ships_high")
_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")


@analysis
def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    harmless: Requests = None,
    score: Score | None = None,
    intervention: InterventionLike | None = None,
    group: Group = "query",
    template: Template | None = None,
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    given: Given | None = None,
) -> SafetyHeads:
    """The ``k`` heads with the largest score, with Ships and Generalized Ships of every head.

    Args:
        k: how many heads to report and draw; how many groups, if the ablation is of groups.
        harmless: a harmless look-alike of each request, for ``"refusal_contribution"``. The package's requests have
            theirs.
        score: what ranks the heads. ``"refusal_contribution"`` and ``"refusal_attribution"`` find most of the heads
            that are known to refuse; ``"ships"`` and ``"generalized_ships"`` are the paper's. By default,
            ``"refusal_attribution"`` for the package's requests; ``"refusal_contribution"`` if you give look-alikes;
            and ``"ships"`` for requests of your own without them.
        intervention: as in ``mh.ships``; by default that of ``mh.ships`` for the paper's scores, and ``"scaling"`` for
            the others. ``"refusal_attribution"`` ranks by two ablations, and takes this one for Ships alone.
        template: as in ``mh.ships``; by default the paper's, ``"query"``, for the paper's scores, and the model's chat
            template, if it has one, for the others.
        requests, group, r, heads: as in ``mh.ships`` and ``mh.safety.generalized_ships``.
        given: as in ``mh.ships``, for the paper's two scores: the others are of the intact model.

    Returns:
        The scores, and ``in_top``: the share of resamples of the prompts in which a head is among the top k. A model
        that refuses nothing has a largest score too, so it also writes short answers to up to 16 of the requests:
        ``refused`` in the provenance says how many it refuses, by the rules (see ``SafetyHeads``).

    Raises:
        ValueError: as in ``mh.ships``, ``mh.safety.generalized_ships``, ``mh.safety.refusal_contribution`` and
            ``mh.safety.refusal_attribution``; or if look-alikes are missing
            or not used.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"])
    >>> len(safety.heads()), safety.provenance["score"], safety.generalized_ships.dims
    (2, 'ships', ('layer', 'head'))
    """
    chosen = _checked(k, score or _default_score(requests, harmless), requests, harmless)
    is_ships = chosen in get_args(ShipsScore)
    if intervention is None:
        intervention = "undifferentiated" if is_ships else "scaling"
    rule, groups = ablation_of(intervention), Groups.of(model, group)
    held = held_groups(given, model, groups)
    if held and not is_ships:
        raise ValueError(f'given: score="{chosen}" is of the intact model; choose score="ships", or leave given out')
    look_alikes, used = None, "query" if is_ships and template is None else template
    if chosen == "refusal_contribution":
        look_alikes = Side.of(model, harmless, used, "safe", "harmless")
    job = SafetyJob(model, Side.of(model, requests, used), rule, groups, heads, look_alikes, held)
    ranked = _by_ships([job], k, chosen, r) if is_ships else [_beside_ships(job, k, chosen, r)]
    return _with_refusals(model, job.requests, ranked)[0]


@analysis
def compare_ablations(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablations: Sequence[InterventionLike] = PAPER_KINDS,
    group: Group = "query",
    score: ShipsScore = "ships",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> dict[str, SafetyHeads]:
    """``mh.safety_heads`` by one of the paper's scores for several ablations, which share one intact run.

    Args:
        ablations: interventions as in ``mh.ships``, each by its name once, whatever its epsilon.
        score: which of the paper's two scores ranks the heads.
        model, requests, k, group, template, r, heads: as in ``mh.safety_heads``.

    Returns:
        The result of each ablation, by its name, as in ``mh.safety_heads``; ``mh.safety.overlap`` shows how far they
        agree.

    Raises:
        ValueError: as in ``mh.safety_heads``, and if a name is given twice, or none is given.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"])
    >>> list(found)
    ['undifferentiated', 'scaling']
    """
    check_at_least(1, k=k)
    check_known("score", score, get_args(ShipsScore))
    some = [] if isinstance(ablations, str) else [ablation_of(one, "ablations") for one in ablations]
    rules = {ablation_name(rule): rule for rule in some}
    if not rules or len(rules) < len(some):
        raise ValueError(f'ablations is {ablations!r}; give a list without repeats, such as ["scaling", "zero"]')
    side, groups = Side.of(model, requests, template), Groups.of(model, group)
    jobs = [SafetyJob(model, side, rule, groups, heads) for rule in rules.values()]
    return dict(zip(rules, _with_refusals(model, side, _by_ships(jobs, k, score, r)), strict=True))


def _default_score(requests: Requests, harmless: Requests) -> Score:
    """The score that finds most of the heads known to refuse, of the scores that use all arguments given."""
    if harmless is not None:
        return "refusal_contribution"
    return "refusal_attribution" if requests is None else "ships"


def _checked(k: int, score: Score, requests: Requests, harmless: Requests) -> Score:
    """The score, after a check that it uses what is given, and has what it needs.

    Raises:
        ValueError: if it does not.
    """
    check_at_least(1, k=k)
    check_known("score", score, get_args(Score))
    if score == "refusal_contribution" and requests is not None and harmless is None:
        raise ValueError(
            'harmless is missing: score="refusal_contribution" compares each request with a harmless look-alike; '
            'give one for each, or choose score="ships"'
        )
    if score != "refusal_contribution" and harmless is not None:
        raise ValueError(
            f'harmless is given, but score="{score}" has no use for it; leave it out, or choose '
            'score="refusal_contribution"'
        )
    return score


def _with_refusals(model: Model, side: Side, ranked: list[SafetyHeads]) -> list[SafetyHeads]:
    """The results with how many of the requests the model refuses, if every head is measured.

    After Ctrl-C while answers are written, the results are complete but for this, and say that they were interrupted.
    """
    if any(each.missing or each.provenance["interrupted"] for each in ranked):
        return ranked
    refused = None
    with until_interrupted() as interrupts:
        refused = count_refusals(model, side)
    if interrupts.interrupted:
        warn(interrupted_after("every head", "how many requests the model refuses is not known"))
        return [each.with_provenance(interrupted=True) for each in ranked]
    return ranked if refused is None else [each.with_provenance(refused=refused) for each in ranked]


def _beside_ships(job: SafetyJob, k: int, score: Score, r: int) -> SafetyHeads:
    """The heads with the largest score of refusals, and both Ships of all heads that have one.

    After Ctrl-C Ships are NaN if they were not reached.
    """
    check_r(r, job)
    scores = _OF_REFUSALS[score](job)
    known = np.isfinite(scores.scores.values)
    columns = {name: np.full(known.shape, np.nan) for name in (*_SHIPS, *_ANGLES)}
    if not scores.provenance["interrupted"]:
        columns = _columns(measure([job], ShipsKind(with_kl=True, r=r))[0])
    seed, variables = current().seed, {name: (("layer", "head"), values) for name, values in columns.items()}
    variables["in_top"] = (("layer", "head"), in_top(scores, k, seed=seed))
    ablation = ablation_name(job.intervention)
    data = scores.dataset.assign(variables).assign_attrs(name=f"safety heads, {ablation}", kind="safety")
    stopped = scores.provenance["interrupted"] or bool(np.isnan(columns["ships"][known]).any())
    about = about_ablation(job.intervention, job.groups) | {"k": k, "score": score, "r": r, "interrupted": stopped}
    return SafetyHeads(data).with_provenance(**about)


def _by_ships(jobs: Sequence[SafetyJob], k: int, score: Score, r: int) -> list[SafetyHeads]:
    """The heads with the largest Ships or Generalized Ships, for each job of one intact run."""
    draws, seed = None, current().seed
    if score == "generalized_ships":
        draws = cluster_draws(jobs[0].requests.prompts.tokens(jobs[0].model).cluster, _DRAWS, seed)
    every = measure(jobs, ShipsKind(True, r, draws))
    return [_safety_heads(measured, {"k": k, "score": score, "seed": seed}) for measured in every]


def _safety_heads(measured: Measured, about: Mapping[str, Any]) -> SafetyHeads:
    """The scores of one pass, by the score in ``about``."""
    variables = {name: (("layer", "head"), values) for name, values in _columns(measured).items()}
    provenance = make_provenance(measured.provenance, about)
    named: dict[str, Any] = {"name": titled(f"safety heads, {provenance['ablation']}", provenance), "kind": "safety"}
    named |= {"provenance": provenance, "variables": variables}
    k, seed, together = about["k"], about["seed"], provenance["together"]
    if about["score"] == "ships":
        scores = SafetyHeads.from_values(measured.kl, cluster=measured.tokens.cluster, seed=seed, **named)
        shares = in_top(scores, k, seed=seed)
    else:
        angle, low, high = measured.angle
        scores = SafetyHeads.from_scores(angle, unit="degrees", interval=(low, high), **named)
        shares = np.repeat(top_shares(measured.resampled[..., ::together], k), together, axis=1)
    return SafetyHeads(scores.dataset.assign(in_top=(("layer", "head"), shares)))


def _columns(measured: Measured) -> dict[str, Float[np.ndarray, "layer head"]]:
    """Ships and Generalized Ships with their intervals."""
    low, high = bounded_interval(measured.kl, measured.tokens.cluster, bounds=kind_of("ships").bounds)
    return dict(zip((*_SHIPS, *_ANGLES), (mean_over_prompts(measured.kl), low, high, *measured.angle), strict=True))


class SafetyHeads(HeadScores):
    """The score that ranks a model's safety heads, with Ships and Generalized Ships of every head.

    ``score`` is the requested score; ``values`` has the score of each prompt, except for Generalized Ships. Further
    variables over (layer, head): ``ships`` in nats and ``generalized_ships`` in degrees, each with ``_low`` and
    ``_high``; and ``in_top``, the share of resamples of the prompts in which a head is among the top k. ``top`` and
    ``heads`` give the requested ``k`` heads by default. ``provenance["refused"]`` says how many requests the intact
    model refuses, by the rules, in short answers: ``n`` of ``of``; and ``same``, to how many it gives one and the same
    answer that does not refuse, if these are most of them. It is missing if no answer could be judged.
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

    def top(self, k: int | None = None, by: RankBy = "score", columns: Sequence[str] | None = None) -> Rows:
        """The ``k`` rows of ``to_dataframe`` with the largest score; see ``HeadScores.top``."""
        return super().top(self.k if k is None else k, by, columns)

    def heads(self, k: int | None = None, by: RankBy = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest score."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> Rows:
        """One row per head, as in ``HeadScores``, with both scores, their intervals and ``in_top``."""
        names = (*_SHIPS, *_ANGLES, "in_top")
        return Rows(super().to_dataframe().assign(**{name: self.dataset[name].values.ravel() for name in names}))

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        refused = refused_of(self.provenance.get("refused"))
        notes = [f"The model {refused} requests."] if refused else []
        table, ranked_by = self.top(), self.provenance["score"]
        shown = table.drop(columns=[name for name in table if str(name).startswith(ranked_by)])
        return shown, [*notes, f"The {self.k} with the largest {ranked_by.replace('_', ' ')}:"]
