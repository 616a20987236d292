"""Activation patching and ablation of every head."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal

from mechheads.heads import HeadLike
from mechheads.interventions import Intervention, Mean, Patch, Resample, Scale, Site, UniformAttention, Zero
from mechheads.jobs import AnyPrompts, Positions
from mechheads.metrics import Metric, kl_divergence, logit_diff
from mechheads.model import Model
from mechheads.prompts import PromptPairs
from mechheads.scores import HeadScores
from mechheads.sweeps import sweep

Ablation = Literal["zero", "mean", "resample", "scale", "uniform"]


def activation_patch(
    model: Model,
    pairs: PromptPairs,
    *,
    site: Site = "z",
    metric: Metric = logit_diff,
    direction: Literal["denoising", "noising"] = "denoising",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """Put one head's activation from one run of a pair into the other, head by head.

    Denoising asks what is enough: the corrupted run with one head restored from the clean run. Noising
    asks what is needed: the clean run with one head taken from the corrupted run.

    Args:
        pairs: clean and corrupted prompts that align token for token.
        site: the activation that is moved: ``z`` (the head's output before W_O), ``q``, ``k``, ``v``
            (before rotation) or ``pattern``. With grouped-query attention k and v are moved for this
            query head alone.
        metric: what is measured; ``logit_diff`` needs ``answer`` and ``wrong``.
        direction: ``"denoising"`` or ``"noising"``.
        heads, positions, normalize, budget, seed, progress, store: as in ``mh.sweep``.

    Returns:
        metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit; with
        ``normalize`` the share of the difference between the runs: 0 nothing, 1 restored.

    Raises:
        ValueError: if the pairs do not align, or an argument does not fit; before the sweep.

    Vig et al. 2020 (causal mediation analysis); Meng et al. 2022; Heimersheim & Nanda 2024.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.activation_patch(model, pairs, heads=["L23H4"], normalize=True, progress=False)
    >>> 0.02 < float(effect.scores.sel(layer=23, head=4)) < 1
    True
    """
    if not isinstance(pairs, PromptPairs):
        raise ValueError(f"pairs is a {type(pairs).__name__}; activation patching needs mh.PromptPairs")
    if direction not in ("denoising", "noising"):
        raise ValueError(f'direction is {direction!r}; choose "denoising" or "noising"')
    return sweep(
        model,
        pairs,
        intervention=Patch(site),
        metric=metric,
        heads=heads,
        positions=positions,
        base="corrupted" if direction == "denoising" else "clean",
        normalize=normalize,
        budget=budget,
        seed=seed,
        progress=progress,
        store=store,
        name=f"activation patching of {site}, {direction}",
        kind="activation_patch",
    )


def ablate(
    model: Model,
    prompts: AnyPrompts,
    *,
    kind: Ablation = "zero",
    factor: float = 0.0,
    metric: Metric = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """Take one head out at a time and measure what changes.

    Args:
        prompts: prompts; of pairs the clean side is used.
        kind: ``"zero"``; ``"mean"`` (over all tokens of these prompts); ``"resample"`` (another prompt's
            z); ``"scale"`` (z times ``factor``); ``"uniform"`` (q times ``factor``: at 0 every token so
            far is attended to alike).
        factor: for ``"scale"`` and ``"uniform"``.
        metric: what is measured; KL(intact || ablated) at the last token by default.
        heads, positions, budget, progress, store: as in ``mh.sweep``.
        seed: for ``"resample"`` and the intervals.

    Returns:
        metric(ablated) - metric(intact) [layer, head(, pos), prompt], in the metric's unit.

    Raises:
        ValueError: if an argument does not fit; before the sweep.

    >>> kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4", "L0H0"], progress=False)
    >>> bool(kl.scores.sel(layer=23, head=4) > 0)
    True
    """
    return sweep(
        model,
        prompts,
        intervention=make_ablation(kind, factor, seed),
        metric=metric,
        heads=heads,
        positions=positions,
        budget=budget,
        seed=seed,
        progress=progress,
        store=store,
        name=f"{kind} ablation",
        kind="ablate",
    )


def make_ablation(kind: str, factor: float = 0.0, seed: int = 0) -> Intervention:
    """The intervention of that name.

    Raises:
        ValueError: if there is none.
    """
    kinds: dict[str, Any] = {
        "zero": Zero(),
        "mean": Mean(),
        "resample": Resample(seed),
        "scale": Scale(factor),
        "uniform": UniformAttention(factor),
    }
    if kind not in kinds:
        raise ValueError(f"kind is {kind!r}; choose one of {', '.join(kinds)}")
    return kinds[kind]
