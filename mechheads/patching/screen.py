"""Screening: patch exactly only the heads that a cheap estimate finds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Spec
from mechheads.heads import HeadId, check_heads
from mechheads.ledger.sweep_key import Store
from mechheads.model.model import Model
from mechheads.patching.attribution import estimate
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

_LEVEL = 0.95


@dataclass(frozen=True)
class Screen:
    """Which heads ``mh.activation_patch(..., screen=...)`` runs.

    Attributes:
        keep: those with the largest attribution: a share between 0 and 1, or their number.
        sample: how many of the others to run as well, drawn at random, to estimate what is missed.

    Raises:
        ValueError: if one does not fit.

    >>> mh.patching.Screen(0.1)
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
    spec: Spec,
    screen: Screen,
    *,
    runs: CachedRuns,
    store: str | PathLike[str] | None,
    progress: bool,
) -> Screened:
    """Choose the heads with the largest attribution and a sample of the others; as before if a store knows them.

    Raises:
        ValueError: if none or all heads would be screened out, or attribution is 0 for every head.
    """
    wanted = check_heads(spec.heads, model.n_layers, model.n_heads)
    count = screen.count(len(wanted))
    attribution = mean_over_prompts(estimate(model, replace(spec, heads=wanted), runs=runs, progress=progress).values)
    size = largest(attribution)
    if not (size[_index(wanted)] > 0).any():
        raise ValueError("the attribution of every head is 0 and cannot tell which to keep; leave screen out")
    ranked = sorted(wanted, key=lambda head: -size[head.layer, head.head])
    kept, out = sorted(ranked[:count]), sorted(ranked[count:])
    drawn = np.random.default_rng(spec.seed).choice(len(out), min(screen.sample, len(out)), replace=False)
    names = [[str(head) for head in some] for some in (kept, out, [out[i] for i in sorted(drawn)])]
    with Store(store, keep=count, sample=len(drawn), seed=spec.seed) as known:
        first, second = runs.sides(spec.base)
        ledger = known.open(
            model,
            {"base": first, "source": second},
            analysis="screen",
            intervention=spec.intervention,
            metric=spec.metric,
            heads=[str(head) for head in wanted],
            positions=spec.positions,
            base=spec.base,
        )
        if ledger is not None:
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
