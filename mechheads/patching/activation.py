"""Activation patching and ablation of every head, one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mechheads.engine.cached_runs import AnyPrompts, Given, ablated_heads
from mechheads.engine.job import Job, Positions, Spec, resolve
from mechheads.engine.report import Metadata
from mechheads.engine.sweep import run_spec
from mechheads.heads import HeadLike
from mechheads.interventions.basic import InterventionLike, Patch, Site, as_intervention
from mechheads.metrics import Metric, as_metric, kl_divergence, logit_diff, name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Side
from mechheads.results.scores import HeadScores

Direction = Literal["denoising", "noising"]


def check_pairs(pairs: object, analysis: str) -> None:
    """Check that an analysis gets pairs."""
    if not isinstance(pairs, PromptPairs):
        raise ValueError(f"pairs is a {type(pairs).__name__}; {analysis} needs mh.PromptPairs")


def base_of(direction: Direction) -> Side:
    """The side that is patched."""
    return "corrupted" if direction == "denoising" else "clean"


@analysis
def activation_patch(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    site: Site = "z",
    metric: Metric | str = logit_diff,
    direction: Direction = "denoising",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    normalize: bool = False,
    given: Given | None = None,
) -> HeadScores:
    """Replace one head's activation in one run of each pair by its value in the other run, head by head.

    Denoising restores one head of the corrupted run from the clean run: is this head enough for the answer? Noising
    corrupts one head of the clean run from the corrupted run: is this head needed?

    Args:
        pairs: clean and corrupted prompts that align token for token.
        site: the activation that is replaced: ``z`` (the head's output before W_O), ``q``, ``k``, ``v`` (before
            rotation) or ``pattern``. With grouped-query attention, k and v are replaced for this query head only.
        metric: as in ``mh.sweep``; ``logit_diff`` needs ``answer`` and ``wrong``.
        direction: ``"denoising"`` or ``"noising"``.
        heads, positions, normalize, given: as in ``mh.sweep``.

    Returns:
        metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit. With ``normalize``, the
        share of the difference between the runs: 0 is no effect, 1 is fully restored.

    Vig et al. 2020 (causal mediation analysis); Meng et al. 2022; Heimersheim & Nanda 2024.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.activation_patch(model, pairs, heads=["L23H4"], normalize=True, progress=False)
    >>> 0.02 < float(effect.scores.sel(layer=23, head=4)) < 1
    True
    """
    inputs = resolve(model, pairs, "pairs")
    check_pairs(inputs.prompts, "activation patching")
    base, ablated = base_of(direction), ablated_heads(given, inputs.model)
    spec = Spec(inputs.prompts, Patch(site), as_metric(metric), heads, positions, base, normalize, ablated=ablated)
    metadata = Metadata(f"activation patching of {site}, {direction}", "activation_patch")
    return run_spec(inputs, spec, metadata)


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
        metric: as in ``mh.sweep``; by default, KL(intact || ablated) at the last token.
        heads, positions, given: as in ``mh.sweep``.

    Returns:
        metric(ablated) - metric(intact) [layer, head(, pos), prompt], in the metric's unit.

    >>> kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4", "L0H0"], progress=False)
    >>> bool(kl.scores.sel(layer=23, head=4) > 0)
    True
    """
    inputs = resolve(model, prompts)
    rule = as_intervention(intervention)
    ablated = ablated_heads(given, inputs.model)
    spec = Spec(inputs.prompts, rule, as_metric(metric), heads, positions, ablated=ablated)
    name = intervention if isinstance(intervention, str) else name_of(rule)
    return run_spec(inputs, spec, Metadata(f"{name} ablation", "ablate"))
