"""Screening: patch only the heads that a cheap estimate selects."""

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
from mechheads.engine.job import Spec, ledger_of
from mechheads.heads import HeadId, check_heads
from mechheads.ledger.sweep_key import Store
from mechheads.model.model import Model
from mechheads.patching.attribution import estimate
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values_of_some, share_interval

_LEVEL = 0.95


@dataclass(frozen=True)
class Screen:
    """Which heads ``mh.activation_patch(..., screen=...)`` runs.

    Attributes:
        keep: how many of the heads with the largest attribution to run: a share between 0 and 1, or a number.
        sample: how many of the other heads to run as well, drawn at random, to estimate what is missed.

    Raises:
        ValueError: if one of them is not valid.

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
                f"screen keeps {self.keep!r}; give a share of the heads between 0 and 1, such as 0.2, or a number of "
                "heads"
            )
        if isinstance(self.sample, bool) or not isinstance(self.sample, Integral) or self.sample < 1:
            raise ValueError(f"sample is {self.sample!r}; it must be a number of heads, 1 or more")

    def count(self, heads: int) -> int:
        """How many of ``heads`` heads are kept.

        Raises:
            ValueError: if all of them are kept.
        """
        kept = int(self.keep) if isinstance(self.keep, Integral) else max(1, round(self.keep * heads))
        if kept >= heads:
            raise ValueError(f"screen keeps {kept} of {heads} heads, so none is screened out; leave screen out")
        return kept


@dataclass(frozen=True, eq=False)
class Screened:
    """The heads that a screening kept, the heads it screened out, a sample of these, and the attribution."""

    kept: tuple[HeadId, ...]
    out: tuple[HeadId, ...]
    sampled: tuple[HeadId, ...]
    attribution: Float[np.ndarray, "layer head place"]

    @property
    def run(self) -> tuple[HeadId, ...]:
        """The heads to run exactly."""
        return tuple(sorted((*self.kept, *self.sampled)))

    def report(self, exact: HeadScores, progress: bool) -> HeadScores:
        """The exact scores together with the attribution and, in the provenance, an estimate of what is missed."""
        data = exact.dataset
        out = np.zeros((exact.n_layers, exact.n_heads), dtype=bool)
        out[_index(self.out)] = True
        p = data["p_value"].values
        q = q_values_of_some(p, out.reshape(*out.shape, *[1] * (p.ndim - 2)))
        found = self.missed(exact)
        if progress:
            print(_line(found), file=sys.stderr)
        attribution = self.attribution if exact.extra_dims else self.attribution[:, :, 0]
        variables: dict[str, Any] = {
            "q_value": (data["p_value"].dims, q),
            "attribution": (data["score"].dims, attribution),
            "screened_out": (("layer", "head"), out),
        }
        return HeadScores(data.assign(variables)).with_provenance(screen=found)

    def missed(self, exact: HeadScores) -> dict[str, Any]:
        """The share of screened-out heads with a larger absolute score than the median kept head, from the sample.

        The median is over the kept heads only, so that the heads of the sample are independent draws.
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
    """Choose the heads with the largest attribution and a sample of the others, or read the choice from a store.

    Raises:
        ValueError: if no head would be screened out, or the attribution of every head is 0.
    """
    wanted = check_heads(spec.heads, model.n_layers, model.n_heads)
    count = screen.count(len(wanted))
    attribution = mean_over_prompts(estimate(model, replace(spec, heads=wanted), runs=runs, progress=progress).values)
    size = largest(attribution)
    if not (size[_index(wanted)] > 0).any():
        raise ValueError("screen: the attribution of every head is 0, so it cannot rank them; leave screen out")
    ranked = sorted(wanted, key=lambda head: -size[head.layer, head.head])
    kept, out = sorted(ranked[:count]), sorted(ranked[count:])
    drawn = np.random.default_rng(spec.seed).choice(len(out), min(screen.sample, len(out)), replace=False)
    names = [[str(head) for head in some] for some in (kept, out, [out[i] for i in sorted(drawn)])]
    with Store(store, keep=count, sample=len(drawn), seed=spec.seed) as known:
        ledger = ledger_of(model, spec, runs, wanted, known, analysis="screen")
        if ledger is not None:
            names = ledger.remember("heads", names)
    parsed = [tuple(HeadId.parse(name) for name in some) for some in names]
    return Screened(parsed[0], parsed[1], parsed[2], attribution)


def largest(score: Float[np.ndarray, "layer head place"]) -> Float[np.ndarray, "layer head"]:
    """The largest absolute score over places; NaN if a head has none."""
    size = np.where(np.isnan(score), -1.0, np.abs(score)).max(axis=2)
    return np.where(size < 0, np.nan, size)


def _index(heads: Sequence[HeadId]) -> tuple[list[int], list[int]]:
    return [head.layer for head in heads], [head.head for head in heads]


def _line(found: dict[str, Any]) -> str:
    """The estimate of what was missed, in one line."""
    begin = f"screen: {found['kept']} of {found['kept'] + found['screened_out']} heads kept; "
    if found["false_negatives"] is None:
        return f"{begin}what was missed could not be estimated, because some heads have no value"
    low, high = found["interval"]
    return (
        f"{begin}about {found['rate']:.0%} of the other {found['screened_out']} ({found['level']:.0%} interval "
        f"{low:.0%} to {high:.0%}) have a larger effect than the median kept head: {found['false_negatives']} of a "
        f"random sample of {len(found['sampled'])}"
    )
