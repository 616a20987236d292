"""Activation patching, of every head or of those that a screening finds; ablation of every head."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from mechheads.backends.changes import alone
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions import Intervention, Mean, Patch, Resample, Scale, Site, UniformAttention, Zero
from mechheads.jobs import AnyPrompts, Positions, tokenize
from mechheads.metrics import Metric, as_metric, kl_divergence, logit_diff
from mechheads.model import Model
from mechheads.patching.attribution import base_of, estimate
from mechheads.prompts import PromptPairs
from mechheads.resumable import open_ledger
from mechheads.scores import HeadScores
from mechheads.stats import mean_over_prompts, q_values, share_interval
from mechheads.suggest import did_you_mean
from mechheads.sweeps import sweep

_LEVEL = 0.95

Ablation = Literal["zero", "mean", "resample", "scale", "uniform"]


@alone
def activation_patch(
    model: Model,
    pairs: PromptPairs,
    *,
    site: Site = "z",
    metric: Metric | str = logit_diff,
    direction: Literal["denoising", "noising"] = "denoising",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
    screen: float | Screen | None = None,
) -> HeadScores:
    """Put one head's activation from one run of a pair into the other, head by head.

    Denoising asks what is enough: the corrupted run with one head restored from the clean run. Noising
    asks what is needed: the clean run with one head taken from the corrupted run.

    Args:
        pairs: clean and corrupted prompts that align token for token.
        site: the activation that is moved: ``z`` (the head's output before W_O), ``q``, ``k``, ``v``
            (before rotation) or ``pattern``. With grouped-query attention k and v are moved for this
            query head alone.
        metric: what is measured, as in ``mh.sweep``; ``logit_diff`` needs ``answer`` and ``wrong``.
        direction: ``"denoising"`` or ``"noising"``.
        heads, positions, normalize, budget, seed, progress, store: as in ``mh.sweep``.
        screen: run only the heads with the largest absolute attribution (see ``mh.attribution_patch``): a share of
            them, such as 0.2, their number, or a ``Screen``. Attribution is averaged over prompts, as the score is;
            with several places the largest counts. Some of the others are drawn at random and run as well, to
            estimate how many of those screened out have a larger absolute score than the median head that was
            kept: 0% if the screening is perfect, 50% if it is no better than chance.

    Returns:
        metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit; with
        ``normalize`` the share of the difference between the runs: 0 nothing, 1 restored. With ``screen`` the heads
        that were not run are NaN; the variables ``attribution`` (layer, head(, pos)) and ``screened_out`` (layer,
        head) tell of all, ``provenance["screen"]`` of what was missed, and q values count the heads not run as
        tested with p = 1.

    Raises:
        ValueError: if the pairs do not align, or an argument does not fit; before the sweep.

    Vig et al. 2020 (causal mediation analysis); Meng et al. 2022; Heimersheim & Nanda 2024.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.activation_patch(model, pairs, heads=["L23H4"], normalize=True, progress=False)
    >>> 0.02 < float(effect.scores.sel(layer=23, head=4)) < 1
    True
    """
    base, metric = base_of(pairs, direction), as_metric(metric)
    name, screened = f"activation patching of {site}, {direction}", None
    if screen is not None:
        screened = screen_heads(
            model, pairs, screen if isinstance(screen, Screen) else Screen(screen), intervention=Patch(site),
            metric=metric, heads=heads, positions=positions, base=base, normalize=normalize, budget=budget, seed=seed,
            progress=progress, store=store,
        )  # fmt: skip
        heads = screened.run
        name += f", {len(heads)} of {len(screened.kept) + len(screened.out)} heads"
    effect = sweep(
        model,
        pairs,
        intervention=Patch(site),
        metric=metric,
        heads=heads,
        positions=positions,
        base=base,
        normalize=normalize,
        budget=budget,
        seed=seed,
        progress=progress,
        store=store,
        name=name,
        kind="activation_patch",
    )
    return effect if screened is None else screened.report(effect, progress)


@dataclass(frozen=True)
class Screen:
    """Which heads ``mh.activation_patch(..., screen=...)`` runs.

    Attributes:
        keep: those with the largest attribution: a share between 0 and 1, or their number.
        sample: how many of the others to run as well, drawn at random, to estimate what is missed.

    Raises:
        ValueError: if one does not fit.

    >>> mh.Screen(0.1)
    Screen(keep=0.1, sample=24)
    """

    keep: float = 0.2
    sample: int = 24

    def __post_init__(self) -> None:
        number = isinstance(self.keep, Integral) and not isinstance(self.keep, bool) and self.keep >= 1
        share = isinstance(self.keep, Real) and not isinstance(self.keep, Integral) and 0 < self.keep < 1
        if not (number or share):
            raise ValueError(
                f"screen keeps {self.keep!r}; give a share of the heads between 0 and 1, such as 0.2, or their number"
            )
        if isinstance(self.sample, bool) or not isinstance(self.sample, Integral) or self.sample < 1:
            raise ValueError(f"sample is {self.sample!r}; it must be a number of heads, 1 or more")

    def count(self, heads: int) -> int:
        """How many of so many heads are kept.

        Raises:
            ValueError: if that is all of them.
        """
        kept = int(self.keep) if isinstance(self.keep, Integral) else max(1, round(self.keep * heads))
        if kept >= heads:
            raise ValueError(f"screen keeps {kept} of {heads} heads, which screens nothing out; leave screen out")
        return kept


@dataclass(frozen=True, eq=False)
class Screened:
    """The heads that a screening kept, those it screened out and a sample of these, and its attribution."""

    kept: tuple[HeadId, ...]
    out: tuple[HeadId, ...]
    sampled: tuple[HeadId, ...]
    attribution: Float[np.ndarray, "layer head place"]

    @property
    def run(self) -> tuple[HeadId, ...]:
        """The heads to run exactly."""
        return tuple(sorted((*self.kept, *self.sampled)))

    def report(self, exact: HeadScores, progress: bool) -> HeadScores:
        """The exact scores with the attribution beside them and, in the provenance, an estimate of what is missed."""
        data = exact.dataset
        out = np.zeros((exact.n_layers, exact.n_heads), dtype=bool)
        out[_index(self.out)] = True
        p = data["p_value"].values
        untested = np.isnan(p) & out.reshape(*out.shape, *[1] * (p.ndim - 2))
        q = np.where(np.isnan(p), np.nan, q_values(np.where(untested, 1.0, p)))
        found = self.missed(exact)
        if progress:
            print(_told(found), file=sys.stderr)
        attribution = self.attribution if exact.extra_dims else self.attribution[:, :, 0]
        variables: dict[str, Any] = {
            "q_value": (data["p_value"].dims, q),
            "attribution": (data["score"].dims, attribution),
            "screened_out": (("layer", "head"), out),
        }
        return HeadScores(data.assign(variables)).with_provenance(screen=found)

    def missed(self, exact: HeadScores) -> dict[str, Any]:
        """How many heads of the sample have a larger absolute score than the median kept one, and so of all the others.

        The median is that of the kept alone, so that the sample's heads are independent draws against it.
        """
        found: dict[str, Any] = {
            "kept": len(self.kept),
            "screened_out": len(self.out),
            "sampled": [str(head) for head in self.sampled],
            "false_negatives": None,
        }
        size = largest(exact.scores.values.reshape(self.attribution.shape))
        kept, sampled = size[_index(self.kept)], size[_index(self.sampled)]
        if np.isnan(kept).any() or np.isnan(sampled).any():
            return found
        larger = sampled > np.median(kept)
        rate = larger.mean(keepdims=True)
        known = len(sampled) == len(self.out)
        low, high = (rate, rate) if known else share_interval(rate, np.array([len(sampled)]), _LEVEL)
        return found | {
            "false_negatives": int(larger.sum()),
            "rate": float(rate[0]),
            "interval": [round(float(low[0]), 6), round(float(high[0]), 6)],
            "level": _LEVEL,
            "median_kept": float(np.median(kept)),
            "largest_sampled": float(sampled.max()),
        }


def screen_heads(
    model: Model,
    pairs: PromptPairs,
    screen: Screen,
    *,
    intervention: Intervention,
    metric: Metric,
    heads: Sequence[HeadLike] | HeadLike | None,
    positions: Positions,
    base: str,
    normalize: bool,
    budget: int | str | None,
    seed: int,
    progress: bool,
    store: str | PathLike[str] | None,
) -> Screened:
    """Choose the heads with the largest attribution and a sample of the others; as before where a store knows them.

    Raises:
        ValueError: if none or all heads would be screened out, or attribution is 0 for every head.
    """
    wanted = check_heads(heads, model.n_layers, model.n_heads)
    count = screen.count(len(wanted))
    found = estimate(
        model, pairs, intervention, metric=metric, heads=wanted, positions=positions, base=base, budget=budget,
        progress=progress, normalize=normalize,
    )  # fmt: skip
    attribution = mean_over_prompts(found.values)
    size = largest(attribution)
    if not (size[_index(wanted)] > 0).any():
        raise ValueError("the attribution of every head is 0 and cannot tell which to keep; leave screen out")
    ranked = sorted(wanted, key=lambda head: -size[head.layer, head.head])
    kept, out = sorted(ranked[:count]), sorted(ranked[count:])
    drawn = np.random.default_rng(seed).choice(len(out), min(screen.sample, len(out)), replace=False)
    names = [[str(head) for head in some] for some in (kept, out, [out[i] for i in sorted(drawn)])]
    if store is not None:
        first, second = tokenize(model, pairs, base)
        runs = {"base": first, "source": second}
        with open_ledger(
            store, model, runs, analysis="screen", intervention=intervention, metric=metric,
            heads=[str(head) for head in wanted], positions=positions, base=base, keep=count,
            sample=len(drawn), seed=seed,
        ) as ledger:  # fmt: skip
            names = ledger.remember("heads", names)
    parsed = [tuple(HeadId.parse(name) for name in some) for some in names]
    return Screened(parsed[0], parsed[1], parsed[2], attribution)


def largest(score: Float[np.ndarray, "layer head place"]) -> Float[np.ndarray, "layer head"]:
    """The absolute value at the place where that is largest; NaN where there is none."""
    size = np.where(np.isnan(score), -1.0, np.abs(score)).max(axis=2)
    return np.where(size < 0, np.nan, size)


def _index(heads: Sequence[HeadId]) -> tuple[list[int], list[int]]:
    return [head.layer for head in heads], [head.head for head in heads]


def _told(found: dict[str, Any]) -> str:
    """The estimate in one line."""
    begin = f"screen: {found['kept']} of {found['kept'] + found['screened_out']} heads kept; "
    if found["false_negatives"] is None:
        return f"{begin}what is missed is not estimated, as some heads have no value"
    low, high = found["interval"]
    return (
        f"{begin}about {found['rate']:.0%} of the other {found['screened_out']} ({found['level']:.0%} interval "
        f"{low:.0%} to {high:.0%}) have a larger effect than the median kept head: {found['false_negatives']} of "
        f"{len(found['sampled'])} drawn at random and run"
    )


@alone
def ablate(
    model: Model,
    prompts: AnyPrompts,
    *,
    kind: Ablation = "zero",
    factor: float = 0.0,
    metric: Metric | str = kl_divergence,
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
        raise ValueError(f"kind is {kind!r}; choose one of {', '.join(kinds)}.{did_you_mean(kind, kinds)}")
    return kinds[kind]
