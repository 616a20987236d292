"""Ablation of one head at a time."""

from __future__ import annotations

from collections.abc import Sequence

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.held_heads import Given, held_by
from mechheads.engine.job import Job, Spec, given as given_prompts
from mechheads.engine.places import Positions
from mechheads.engine.report import About
from mechheads.engine.sweep import run_spec
from mechheads.heads import HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.metrics.base import Metric, name_of
from mechheads.metrics.basic import as_metric, kl_divergence
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores


@analysis
def ablate(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    intervention: InterventionLike = "zero",
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    given: Given | None = None,
) -> HeadScores:
    """Ablate one head at a time and measure how the metric changes.

    Args:
        prompts: prompts; for pairs, the clean side is used.
        intervention: the ablation, by name or as an intervention: ``"zero"``; ``"mean"`` (over all tokens of these
            prompts); ``"resample"`` (another prompt's z); ``"uniform"`` (the head attends equally to every token so
            far); ``mh.patching.Scale(0.5)`` (z times 0.5); or any other of ``mh.sweep``.
        metric: what is measured; by default, KL(intact || ablated) at the last token.
        heads, positions, given: as in ``mh.sweep``.

    Returns:
        metric(ablated) - metric(intact) [layer, head(, pos), prompt], in the metric's unit.

    Raises:
        ValueError: if an argument is not valid; before the sweep starts.

    >>> kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4", "L0H0"], progress=False)
    >>> bool(kl.scores.sel(layer=23, head=4) > 0)
    True
    """
    model, asked, cached = given_prompts(model, prompts)
    rule = as_intervention(intervention)
    spec = Spec(asked, rule, as_metric(metric), heads, positions, held=held_by(given, model))
    name = intervention if isinstance(intervention, str) else name_of(rule)
    return run_spec(model, spec, About(f"{name} ablation", "ablate"), runs=cached)
