"""Intervals of means whose values have bounds: shares, differences of shares, and what is never below 0."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mechheads.results.clusters import Clustered, Estimates, estimates
from mechheads.results.stats import clustered_interval, share_interval

LEAST_OF_BOUNDED = 6
"""The fewest clusters for an interval of a share, or of what has only a lower end: three give a share one of 0.9."""


class Bounds(NamedTuple):
    """Between what the values of a score lie; infinite where there is no end.
    ``share``: whether each value is 0 or ``high``, or, if ``low`` is below 0, a difference of two such.
    """

    low: float = -inf
    high: float = inf
    share: bool = False

    @classmethod
    def of(cls, given: Sequence[Any] | None) -> Bounds | None:
        """Bounds from (low, high) or (low, high, share), with None for an end that is not there; None if neither is."""
        if given is None:
            return None
        numbers = given if isinstance(given, Sequence) and len(given) in (2, 3) else (0, 0)
        ends = [end if number is None else float(number) for number, end in zip(numbers, (-inf, inf), strict=False)]
        if not ends[0] < ends[1]:
            raise ValueError(f"bounds is {given!r}; give the lower and the upper end, such as (0, 1) or (0, None)")
        found = cls(ends[0], ends[1], len(given) == 3 and bool(given[2]))
        if found.share and (found.low not in (0, -found.high) or found.high == inf):
            raise ValueError(f"bounds is {given!r}; a share lies between 0 and 1, a difference between -1 and 1")
        return None if found == cls() else found

    def packed(self) -> list[Any]:
        """What ``of`` takes, in a form that JSON can store."""
        return [*(None if end in (-inf, inf) else end for end in self[:2]), self.share]


def bounded_interval(
    values: Float[np.ndarray, "*batch prompt"],
    cluster: Sequence[object] | np.ndarray | None = None,
    *,
    bounds: Sequence[Any] | None,
    level: float = 0.95,
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """Confidence interval of the mean over prompts that lies within the bounds of the values.

    - Without bounds: ``clustered_interval``.
    - A share: Wilson's interval (1927), with the effective number of prompts and a t quantile in place of the normal
      one. The effective number is that of independent prompts with as large an error, and at most the number of
      prompts. If all values are equal, it is the number of clusters.
    - A difference of shares: the interval for paired proportions of Agresti & Min 2005, with the same number and
      quantile. It adds half a prompt to those with 1 and with -1, and one to those with 0.
    - No end but a lower one: on the log scale of the distance from that end, from leaving out each cluster once
      (jackknife). The upper end is that of ``clustered_interval`` if it is larger.
    - Other bounds: ``clustered_interval``, cut off at the bounds. If all values are equal to one end, Wilson's interval
      of the distance from it, as a share of that between the ends: no values within them vary more than 0 and 1.

    With fewer than 6 clusters, a share, a difference of shares and what has only a lower end have no interval.

    Args:
        values: one value per prompt on the last axis; NaN means "not measured".
        cluster: a label per prompt; ``None`` makes every prompt its own cluster.
        bounds: between what the values lie, as ``Bounds.of`` takes it.
        level: the share of such intervals that should contain the true mean.

    Returns:
        Low and high ends, one per row; NaN if ``clustered_interval`` gives NaN, or there are too few clusters.

    >>> import numpy as np
    >>> low, high = bounded_interval(np.ones(8), bounds=(0, 1, True))
    >>> round(float(low), 2), float(high)
    (0.59, 1.0)
    """
    low, high = (end.ravel() for end in clustered_interval(values, cluster, level=level))
    values = np.asarray(values, dtype=np.float64)
    shape, bounds = values.shape[:-1], Bounds.of(bounds)
    if bounds is None:
        return low.reshape(shape), high.reshape(shape)
    from_end = bounds.low if bounds.high == inf else 0.0
    for found in estimates(Clustered(values, cluster, from_end), level):
        if bounds.share:
            of_rows = values.reshape(-1, values.shape[-1])[found.rows] / bounds.high
            low[found.rows], high[found.rows] = (bounds.high * end for end in _of_share(of_rows, found, bounds))
        elif bounds.high == inf:
            start, end = _of_positive(found)
            known = np.isfinite(end) & (found.mean > 0)
            rows = found.rows[known]
            low[rows], high[rows] = bounds.low + start[known], np.maximum(high[rows], bounds.low + end[known])
        elif bounds.low > -inf:
            start, end = _of_end(found, bounds)
            known = np.isfinite(start)
            low[found.rows[known]], high[found.rows[known]] = start[known], end[known]
        if bounds.share or bounds.high == inf:
            few = found.rows[(found.counts > 0).sum(axis=1) < LEAST_OF_BOUNDED]
            low[few] = high[few] = np.nan
    low, high = (np.clip(end, bounds.low, bounds.high).reshape(shape) for end in (low, high))
    return low, high


def _of_share(values: np.ndarray, found: Estimates, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a share, or of a difference of shares, in units of a yes."""
    n, clusters, q = found.counts.sum(axis=1), (found.counts > 0).sum(axis=1), found.quantile
    up, down = (np.nansum(np.clip(sign * values, 0, None), axis=1) / n for sign in (1, -1))
    spread = up + down - (up - down) ** 2
    together = (found.scaled(found.error) / bounds.high) ** 2
    equal = (spread <= 0) | (together <= 0)
    effective = np.where(equal, clusters, np.minimum(spread / np.where(equal, 1, together) + 1, n))
    if bounds.low == 0:
        return share_interval(up, effective, quantile=q)
    # half a prompt more with 1, half with -1, one with 0
    more, less, size = up * effective + 0.5, down * effective + 0.5, effective + 2
    reach = q * np.sqrt(np.maximum(more + less - (more - less) ** 2 / size, 0)) / size
    return (more - less) / size - reach, (more - less) / size + reach


def _of_end(found: Estimates, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """The interval of values that are all equal to an end; NaN for other values."""
    mean, clusters = found.scaled(found.mean), (found.counts > 0).sum(axis=1)
    at_end = (found.error == 0) & ((mean == bounds.low) | (mean == bounds.high))
    width = bounds.high - bounds.low
    ends = share_interval(np.where(mean == bounds.high, 1.0, 0.0), clusters, quantile=found.quantile)
    low, high = (np.where(at_end, bounds.low + width * end, np.nan) for end in ends)
    return low, high


def _of_positive(found: Estimates) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a mean of positive values, on the log scale; infinite if one cluster has all."""
    total, size = found.totals.sum(axis=1, keepdims=True), found.counts.sum(axis=1, keepdims=True)
    has = found.counts > 0
    clusters = has.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        logs = np.where(has, np.log((total - found.totals) / np.where(has, size - found.counts, 1)), 0)
        off = np.where(has, logs - logs.sum(axis=1, keepdims=True) / clusters[:, None], 0)
        error = np.sqrt((clusters - 1) / clusters * (off**2).sum(axis=1))
        spread = np.exp(found.quantile * error)
        return found.scaled(found.mean / spread), found.scaled(found.mean * spread)
