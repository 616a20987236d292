"""Activation patching of every head."""

from __future__ import annotations

from collections.abc import Sequence

from mechheads.engine.held_heads import Given, held_by
from mechheads.engine.job import Job, Spec, given as given_prompts
from mechheads.engine.places import Positions
from mechheads.engine.report import About
from mechheads.engine.sweep import run_spec
from mechheads.heads import HeadLike
from mechheads.interventions.base import Site
from mechheads.interventions.basic import Patch
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.pairs import Direction, base_of, check_pairs
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores


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
        metric: what is measured, as in ``mh.sweep``; ``logit_diff`` needs ``answer`` and ``wrong``.
        direction: ``"denoising"`` or ``"noising"``.
        heads, positions, normalize, given: as in ``mh.sweep``.

    Returns:
        metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit. With ``normalize``, the
        share of the difference between the runs: 0 is no effect, 1 is fully restored.

    Raises:
        ValueError: if the pairs do not align, or an argument is not valid; before the sweep starts.

    Vig et al. 2020 (causal mediation analysis); Meng et al. 2022; Heimersheim & Nanda 2024.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.activation_patch(model, pairs, heads=["L23H4"], normalize=True, progress=False)
    >>> 0.02 < float(effect.scores.sel(layer=23, head=4)) < 1
    True
    """
    model, asked, cached = given_prompts(model, pairs, "pairs")
    check_pairs(asked, "activation patching")
    base, held = base_of(direction), held_by(given, model)
    spec = Spec(asked, Patch(site), as_metric(metric), heads, positions, base, normalize, held=held)
    about = About(f"activation patching of {site}, {direction}", "activation_patch")
    return run_spec(model, spec, about, runs=cached)
