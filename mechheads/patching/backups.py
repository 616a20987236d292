"""Backups: the heads that matter more once others are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.cached_runs import AnyPrompts, CachedRuns
from mechheads.engine.held_heads import Given, Held, held_by
from mechheads.engine.job import Job, Spec, given as given_prompts, make_ready
from mechheads.engine.report import describe_given, describe_heads, describe_intervention
from mechheads.engine.run import batches
from mechheads.engine.work import effects, measure
from mechheads.heads import HeadId, HeadLike, random_sets
from mechheads.interventions.basic import InterventionLike, Patch, as_intervention
from mechheads.ledger.key import NO_STORE, Store
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.metrics.base import Metric, MetricInfo
from mechheads.metrics.basic import as_metric, kl_divergence
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.evidence import differs
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import rounding_of
from mechheads.results.words import titled


@analysis
def backups(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    heads: Given | None = None,
    *,
    intervention: InterventionLike = "mean",
    metric: Metric | str = kl_divergence,
    among: Sequence[HeadLike] | HeadLike | None = None,
    draws: int = 5,
) -> HeadScores:
    """How much the effect of ablating each other head grows once some heads are gone.

    A backup does nothing while the heads that it stands in for work, and so does a head that does nothing at all:
    ablating one head at a time cannot tell them apart. Here, the score of head h is its effect in the model without
    the heads S, minus its effect in the intact model (Conditional Co-Ablation):

        score(h | S) = effect of ablating h, given that S is ablated - effect of ablating h

    An effect is KL(before || after) of the next token, or the change of another metric. A change can have either sign;
    then the score is multiplied by that of the larger of both mean effects, so that it is above 0 if the effect is
    larger without S. Any ablation changes the scale of the final norm, and with it many effects a little. So the same
    is measured for other heads in the place of S, as many and from the same layers.

    Args:
        prompts: prompts; for pairs, the clean side is used.
        heads: the heads that are gone, S; or a dict with an intervention for each, as ``given`` of ``mh.sweep``.
        intervention: how heads are ablated, as in ``mh.ablate``. A head that rests on one token writes the same vector
            all the time; set to zero, that is gone too, and its effect in the intact model hides the growth.
        metric: what is measured, as in ``mh.sweep``.
        among: the heads that are scored; by default, all but S.
        draws: the number of random sets in the place of S; 0 for none. Each costs as much as S.

    Returns:
        The growth [layer, head, prompt] in the metric's unit, with intervals over prompts, p against 0 and family p.
        Further variables: ``alone`` (layer, head, prompt), the effect in the intact model; ``drawn`` (draw, layer,
        head), the growth with each random set in the place of S; and ``beyond`` (layer, head), the share of the random
        sets with which the growth is smaller. In the provenance, ``beyond`` is the share of the sets with which the
        largest growth of any head is smaller than here. After Ctrl-C, the heads and sets that were finished.

    Raises:
        ValueError: if an argument is not valid, or too few heads are left to draw from; before the sweeps start.

    Gong et al. 2026 (Conditional Co-Ablation, arXiv 2607.01940).

    >>> prompts = ["The capital of France is", "The capital of Italy is"]
    >>> found = mh.patching.backups(model, prompts, "L23H4", among=["L23H5", "L29H2"], draws=2)
    >>> found.name, found.unit, found.dataset["drawn"].shape
    ('growth of effects, Mean(), given that L23H4 is mean-ablated', 'nats', (2, 30, 9))
    """
    model, asked, cached = given_prompts(model, prompts)
    check_at_least(0, draws=draws)
    if heads is None:
        raise ValueError('heads is missing; name the heads that are gone, such as ["L23H4"]')
    rule, seed = as_intervention(intervention), current().seed
    gone = held_by(heads, model, "heads", rule)
    named = [head for head, _ in gone]
    sets = random_sets(named, named, model.n_layers, model.n_heads, draws=draws, seed=seed) if draws else {}
    others = [tuple(zip(each, (rule for _, rule in gone), strict=True)) for each in sets.values()]
    spec = Spec(asked, rule, as_metric(metric), among)
    with Store(current().store) as store:
        return _grown(model, spec, gone, others, cached, store)


def _grown(
    model: Model,
    spec: Spec,
    gone: Held,
    others: Sequence[Held] = (),
    runs: CachedRuns | None = None,
    store: Store = NO_STORE,
) -> HeadScores:
    """The growth of effects once heads are gone, and once other sets are."""
    runs = CachedRuns(model, spec.prompts) if runs is None else runs

    def effect(held: Held) -> tuple[Job, Float[np.ndarray, "layer head prompt"], bool]:
        job = make_ready(model, replace(spec, held=held), runs=runs, store=store)
        work = effects(job)
        warn_of_answers(job)
        measured = measure(work, batches(job))
        return job, measured.heads[:, :, 0], measured.interrupted

    _, alone, stopped = effect(())
    stop_if(stopped)
    job, without, stopped = effect(gone)
    growth = _growth(alone, without)
    drawn = np.full((len(others), *growth.shape[:2]), np.nan)
    with until_interrupted() as interrupts:
        for i, held in enumerate(others):
            stop_if(stopped)
            _, values, stopped = effect(held)
            drawn[i] = _growth(alone, values).mean(-1)
    interrupts.warn("the heads that are gone", "the random sets are NaN")
    score, at = growth.mean(-1), ("layer", "head")
    compared = np.isfinite(drawn) & np.isfinite(score)
    with np.errstate(invalid="ignore"):
        beyond = (compared & (drawn < score)).sum(0) / compared.sum(0)
    largest, reached = np.where(compared, drawn, -np.inf).max((1, 2), initial=-np.inf), compared.any((1, 2))
    variables = {"alone": ((*at, "prompt"), alone), "drawn": (("draw", *at), drawn), "beyond": (at, beyond)}
    more = {
        "draws": [[str(head) for head, _ in held] for held in others],
        "beyond": float((largest < np.nanmax(score, initial=-np.inf))[reached].mean()) if reached.any() else None,
        "interrupted": stopped,
    }
    return _scores(job, "backups", [alone, without], more, variables)


def patching_backups(model: Model, pairs: PromptPairs | Job, patching: HeadScores, metric: Metric) -> HeadScores | None:
    """How much more each head matters to a patching once its first head is set to zero in both runs.

    Args:
        patching: the share of the difference between the runs that each head restores, from ``activation_patch``: half
            of what is compared, so that this costs one sweep.

    Returns:
        The growth [layer, head, prompt] in the metric's unit; None if no head can be told to restore anything, so that
        nothing can stand in for it.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
    """
    told = np.where(differs(patching), patching.scores.values, 0.0)
    if not (told > 0).any():
        return None
    first = HeadId(*(int(at) for at in np.unravel_index(np.argmax(told), told.shape)))
    _, asked, cached = given_prompts(model, pairs, "pairs")
    spec, runs = Spec(asked, Patch(), metric, base="corrupted"), cached or CachedRuns(model, asked)
    whole = make_ready(model, spec, runs=runs).evaluator.distance()
    with Store(current().store) as store:
        job = make_ready(model, replace(spec, held=held_by(first, model)), runs=runs, store=store)
        measured = measure(effects(job), batches(job))
    stop_if(measured.interrupted)
    of = np.asarray(patching.values) * whole, measured.heads[:, :, 0]
    return _scores(job, "patching_backups", of, {"direction": "denoising", "site": "z", "interrupted": False})


def _growth(
    alone: Float[np.ndarray, "layer head prompt"], without: Float[np.ndarray, "layer head prompt"]
) -> Float[np.ndarray, "layer head prompt"]:
    """How much effects are larger without some heads, in the direction of the larger of both mean effects."""
    means = alone.mean(-1, keepdims=True), without.mean(-1, keepdims=True)
    larger = np.where(np.abs(means[1]) >= np.abs(means[0]), means[1], means[0])
    return (without - alone) * np.where(larger < 0, -1, 1)


def _scores(
    job: Job,
    kind: str,
    of: Sequence[Float[np.ndarray, "layer head prompt"]],
    more: Mapping[str, Any],
    variables: Mapping[str, Any] | None = None,
) -> HeadScores:
    """The growth of effects as a result.

    Args:
        of: the effects with the heads and without them.
    """
    spec, metric, about = job.spec, MetricInfo.of(job.spec.metric), describe_given(job.spec.held)
    base = job.evaluator.base_value.cpu().numpy()
    intervention = describe_intervention(spec.intervention)
    settings = {"metric": metric.name, "prompts": job, "n_prompts": len(job.tokens), "seed": spec.seed}
    settings |= {"intervention": intervention, "heads": describe_heads(job)}
    alone, without = of
    return HeadScores.from_values(
        _growth(alone, without),
        name=titled(f"growth of effects, {intervention}", about),
        unit=metric.unit,
        kind=kind,
        cluster=job.tokens.cluster,
        seed=spec.seed,
        rounding=rounding_of(*of, base),
        provenance=make_provenance(job.model, settings, more, about),
        variables=variables,
    )
