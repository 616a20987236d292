"""Statistics of means over prompts: clustered intervals, cluster sign flips, families of tests.

Prompts made from one template or about one entity are not independent, so whole clusters are compared or flipped, never
single prompts. All functions are vectorised over every axis but the last, take NaN as "not measured", and return NaN if
a statistic is not defined. However many prompts there are, they take less than 40 MB besides the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.special import ndtri

from mechheads.messages.arguments import check_at_least
from mechheads.results.clusters import (
    LEAST_CLUSTERS,
    Clustered,
    Estimates,
    estimates,
    numbered_clusters,
    parts,
)

LEAST_OF_BOUNDED = 6
"""The fewest clusters for an interval of a share (with three, it is 0.9 wide) or of values with only a lower bound."""
EXACT_UP_TO = 2**13
"""Up to this many sign patterns (13 clusters), all are tried; of more, a sample is drawn."""
ROUNDING = 2.0**-20
"""The rounding error of float32, as a share of the numbers that a value is computed from: eight units in the last
place, because a value is a difference of two metrics, which sum over many numbers."""
_SUMS_AT_ONCE = 2**20
"""The most sums of sign patterns in memory, one for each row and pattern: 8 MB."""
_SIGNS_AT_ONCE, _PATTERNS_AT_ONCE = 2**19, 1024
_CACHED_SIGNS = 2**23
"""The most signs in memory for all rows, 8 MB; more are drawn again for each part of the rows."""


def clustered_interval(
    values: Float[np.ndarray, "*batch prompt"],
    cluster: Sequence[object] | np.ndarray | None = None,
    *,
    level: float = 0.95,
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """Confidence interval of the mean over prompts, from the spread between clusters: a t interval, wider for skew.

    Let w_g be the share of the prompts in cluster g, m_g the cluster's mean, u_g = w_g (m_g - m) / sqrt(1 - w_g) and
    s = sqrt(sum u_g^2) (CR2). The ends are m -+ s q, where q is the quantile of t with Satterthwaite's degrees of
    freedom (Bell & McCaffrey 2002): c - 1 for c clusters of one size, fewer if some are larger. With few, skewed
    effects, such an interval misses the mean too often on one side. The first term of the Edgeworth expansion (Johnson
    1978, Hall 1988) says by how much: s k (2 q^2 + 1) / 6 with k = sum u_g^3 / s^3. This term is added on the side of
    the longer tail. It is not subtracted on the other side, because few clusters give a poor estimate of the skewness.
    docs/uncertainty.md reports the coverage.

    Args:
        values: one value per prompt on the last axis; NaN means "not measured".
        cluster: a label per prompt; ``None`` makes every prompt its own cluster.
        level: the share of such intervals that should contain the true mean.

    Returns:
        Low and high ends, one per row, in the unit of ``values``; NaN if fewer than three clusters were measured (see
        ``cluster_range``) or a value is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length, or ``level`` is not between 0 and 1.

    >>> import numpy as np
    >>> low, high = clustered_interval(np.array([1.0, 1.2, 2.0, 2.2, 3.0, 3.2]), ["a", "a", "b", "b", "c", "c"])
    >>> low.round(2).tolist(), high.round(2).tolist()
    (-0.38, 4.58)
    """
    clustered = Clustered(values, cluster)
    low, high = clustered.nans(), clustered.nans()
    for batch in estimates(clustered, level):
        q = batch.quantile
        longer = batch.skew * (2 * q**2 + 1) / 6
        low[batch.rows] = batch.mean - batch.error * (q + np.maximum(-longer, 0))
        high[batch.rows] = batch.mean + batch.error * (q + np.maximum(longer, 0))
    return low.reshape(clustered.shape), high.reshape(clustered.shape)


def cluster_range(
    values: Float[np.ndarray, "*batch prompt"], cluster: Sequence[object] | np.ndarray | None = None
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """The smaller and the larger mean of two clusters, which are too few for an interval.

    Args:
        values, cluster: as in ``clustered_interval``.

    Returns:
        Both ends, one per row; NaN if more or fewer than two clusters were measured, or a value is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length.

    >>> import numpy as np
    >>> low, high = cluster_range(np.array([1.0, 2.0, 5.0]), ["a", "a", "b"])
    >>> float(low), float(high)
    (1.5, 5.0)
    """
    clustered = Clustered(values, cluster)
    low, high = clustered.nans(), clustered.nans()
    for part in clustered.parts():
        totals, counts = clustered.sums(part)
        two = ((counts > 0).sum(axis=1) == LEAST_CLUSTERS - 1) & clustered.finite[part]
        means = totals[two] / np.where(counts[two] > 0, counts[two], np.nan)
        low[part[two]] = np.nanmin(means, axis=1, initial=np.inf)
        high[part[two]] = np.nanmax(means, axis=1, initial=-np.inf)
    return low.reshape(clustered.shape), high.reshape(clustered.shape)


class Bounds(NamedTuple):
    """The range in which the values of a score lie; infinite where there is no bound.
    ``share``: whether each value is 0 or ``high``, or, if ``low`` is below 0, a difference of two such values.
    """

    low: float = -inf
    high: float = inf
    share: bool = False

    @classmethod
    def of(cls, limits: Sequence[Any] | None) -> Bounds | None:
        """Bounds from (low, high) or (low, high, share), with None for a missing bound; None if both are missing."""
        if limits is None:
            return None
        numbers = limits if isinstance(limits, Sequence) and len(limits) in (2, 3) else (0, 0)
        ends = [end if number is None else float(number) for number, end in zip(numbers, (-inf, inf), strict=False)]
        if not ends[0] < ends[1]:
            raise ValueError(f"bounds is {limits!r}; give the lower and the upper end, such as (0, 1) or (0, None)")
        bounds = cls(ends[0], ends[1], len(limits) == 3 and bool(limits[2]))
        if bounds.share and (bounds.low not in (0, -bounds.high) or bounds.high == inf):
            raise ValueError(f"bounds is {limits!r}; a share lies between 0 and 1, a difference between -1 and 1")
        return None if bounds == cls() else bounds

    def packed(self) -> list[Any]:
        """The bounds as a list that JSON can store and ``of`` reads."""
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
      one. The effective number is how many independent prompts have as large an error, and at most the number of
      prompts. If all values are equal, it is the number of clusters.
    - A difference of shares: the interval for paired proportions of Agresti & Min 2005, with the same number and
      quantile. It adds half a prompt to those with 1 and with -1, and one to those with 0.
    - Only a lower bound: a jackknife over clusters on the log scale of the distance from the bound. The upper end is
      the one of ``clustered_interval`` if it is larger.
    - Other bounds: ``clustered_interval``, cut off at the bounds. If all values are equal to one bound, Wilson's
      interval of the distance from it, as a share of the range: no values in the range vary more than 0 and 1.

    With fewer than 6 clusters, a share, a difference of shares and values with only a lower bound have no interval.

    Args:
        values, cluster, level: as in ``clustered_interval``.
        bounds: the range of the values, as ``Bounds.of`` takes it.

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
    for batch in estimates(Clustered(values, cluster, from_end), level):
        if bounds.share:
            shares = values.reshape(-1, values.shape[-1])[batch.rows] / bounds.high
            low[batch.rows], high[batch.rows] = (bounds.high * end for end in _interval_of_share(shares, batch, bounds))
        elif bounds.high == inf:
            start, end = _interval_of_positive(batch)
            known = np.isfinite(end) & (batch.mean > 0)
            rows = batch.rows[known]
            low[rows], high[rows] = bounds.low + start[known], np.maximum(high[rows], bounds.low + end[known])
        elif bounds.low > -inf:
            start, end = _interval_at_bound(batch, bounds)
            known = np.isfinite(start)
            low[batch.rows[known]], high[batch.rows[known]] = start[known], end[known]
        if bounds.share or bounds.high == inf:
            few = batch.rows[(batch.counts > 0).sum(axis=1) < LEAST_OF_BOUNDED]
            low[few] = high[few] = np.nan
    low, high = (np.clip(end, bounds.low, bounds.high).reshape(shape) for end in (low, high))
    return low, high


def sign_flip_p(
    values: Float[np.ndarray, "*batch prompt"],
    cluster: Sequence[object] | np.ndarray | None = None,
    *,
    null: float = 0.0,
    seed: int = 0,
    n: int = 9999,
    rounding: float = 0.0,
) -> Float[np.ndarray, "*batch"]:
    """Two-sided p value of the hypothesis that the mean is ``null``, from flipping the signs of whole clusters.

    The test assumes symmetry: a cluster's deviation from ``null`` is as likely to be x as -x. Then every pattern of
    signs is as likely as the observed one, and p is the share of patterns whose mean is at least as far from ``null``.
    For skewed effects, p can be small although their mean is ``null`` (docs/uncertainty.md reports how often). With up
    to 13 clusters, all patterns are counted and p is exact. With more, ``n`` random patterns are drawn, and
    p = (1 + number at least as far) / (1 + n), which is never 0.

    Args:
        values, cluster: as in ``clustered_interval``.
        null: the mean to test against, in the unit of ``values``.
        seed: seed of the random patterns.
        n: the number of random patterns.
        rounding: values no further than this from ``null`` count as ``null``.

    Returns:
        One p value per row; NaN if nothing was measured or a value is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length, or ``n`` is below 1.

    >>> import numpy as np
    >>> float(sign_flip_p(np.array([1.0, 2.0, 3.0])))  # 2 of the 8 patterns: +++ and ---
    0.25
    """
    check_at_least(1, n=n)
    clustered = Clustered(values, cluster, null, rounding)
    signs, p = _Signs(clustered.n_clusters, n, seed), clustered.nans()
    for flips in _flips(clustered, signs, clustered.usable()):
        p[flips.rows] = signs.share((flips.sums >= flips.observed).sum(axis=1))
    return p.reshape(clustered.shape)


def family_p(
    values: Float[np.ndarray, "*batch prompt"],
    cluster: Sequence[object] | np.ndarray | None = None,
    *,
    null: float = 0.0,
    seed: int = 0,
    n: int = 9999,
    rounding: float = 0.0,
) -> Float[np.ndarray, "*batch"]:
    """p values of all rows as one family: among rows whose mean is ``null``, the chance of any p <= 0.05 is 5%.

    The rows share their prompts, so a pattern of signs flips the clusters of all rows together, and gives each row a
    t = mean / (sd / sqrt(clusters)). The p of a row is the share of patterns in which the largest ``|t|``, of the row
    itself and of all weaker rows, is at least the row's own ``|t|``; and no less than the p of a stronger row. This is
    the step-down max-T of Westfall & Young 1993, with sign flips as in Nichols & Holmes 2002. It takes the dependence
    between rows into account: copies of a row cost nothing. The least p is 2 / 2^clusters, however many rows there are.
    As ``sign_flip_p``, it assumes that effects are as likely to be x as -x.

    A cluster counts as the sum of its prompts' deviations from ``null``, as in ``sign_flip_p``, so that a
    large cluster counts for more. A family of one row has the p of ``sign_flip_p``, and no row has a smaller one.
    ``|t|`` is compared by ``|sum| / sqrt(sum of squares)`` of these, which has the same order, is finite if all are
    equal, and at most the root of the number of clusters, so that rows with few measured prompts do not drown the
    others.

    Args:
        values, cluster, null, seed, n, rounding: as in ``sign_flip_p``.

    Returns:
        One p value per row; NaN if nothing was measured or a value is infinite, and such rows are not in the family.

    Raises:
        ValueError: if ``cluster`` has the wrong length, or ``n`` is below 1.

    >>> import numpy as np
    >>> rows = np.array([[1.0, 1.1, 0.9, 1.2, 1.0, 0.8], [1.0, -1.0, 0.5, -0.6, 0.2, 0.1]])
    >>> family_p(rows).tolist()  # sign_flip_p gives 0.03125 and 0.90625
    [0.03125, 0.9375]
    """
    check_at_least(1, n=n)
    clustered = Clustered(values, cluster, null, rounding)
    signs, p, strength = _Signs(clustered.n_clusters, n, seed), clustered.nans(), clustered.nans()
    for part in clustered.parts():
        totals = clustered.sums(part)[0]
        squares = (totals**2).sum(axis=1)
        strength[part] = np.abs(totals.sum(axis=1)) / np.sqrt(np.where(squares > 0, squares, 1))
    weakest_first = clustered.usable()
    weakest_first = weakest_first[np.argsort(strength[weakest_first], kind="stable")]
    largest = np.zeros(signs.patterns)
    for flips in _flips(clustered, signs, weakest_first):
        flips.sums /= flips.size
        for of_row in flips.sums:
            largest = np.maximum(largest, of_row, out=of_row)
        largest = largest.copy()
        p[flips.rows] = signs.share((flips.sums >= flips.observed / flips.size).sum(axis=1))
    strongest_first = weakest_first[::-1]
    p[strongest_first] = np.maximum.accumulate(p[strongest_first])
    return p.reshape(clustered.shape)


def carried_by(
    values: Float[np.ndarray, "*batch prompt"], cluster: Sequence[object] | np.ndarray | None = None
) -> Int[np.ndarray, "*batch"]:
    """The cluster without which the mean is half as large or less, or has the other sign; -1 if no cluster carries it.

    Args:
        values, cluster: as in ``clustered_interval``.

    Returns:
        For each row, the index of the first prompt of the cluster without which the mean changes most. -1 also for
        rows with fewer than three clusters, with an infinite value, or whose mean is 0.

    Raises:
        ValueError: if ``cluster`` has the wrong length.

    >>> import numpy as np
    >>> carried_by(np.array([[0.1, 0.0, 6.0, 0.1], [1.0, 2.0, 1.5, 1.0]])).tolist()
    [2, -1]
    """
    clustered = Clustered(values, cluster)
    first = np.full(len(clustered.finite), -1)
    for part in clustered.parts():
        totals, counts = clustered.sums(part)
        total, size = totals.sum(axis=1, keepdims=True), counts.sum(axis=1, keepdims=True)
        rest = np.where((counts > 0) & (counts < size), size - counts, np.nan)
        # the mean without a cluster, as a share of the mean
        left = (total - totals) / rest * size / np.where(total != 0, total, np.nan)
        usable = ((counts > 0).sum(axis=1) >= LEAST_CLUSTERS) & clustered.finite[part]
        change = np.where(left <= 0.5 + 1e-12, 1 - left, -np.inf)
        at = np.argmax(change, axis=1)
        carries = usable & np.isfinite(change[np.arange(len(part)), at])
        first[part[carries]] = clustered.first_prompts[at[carries]]
    return first.reshape(clustered.shape)


def rounding_of(*numbers: Float[np.ndarray, "... prompt"]) -> float:
    """The rounding error in float32 of values that are computed from numbers as large as these.
    It is taken from the median over prompts of each prompt's largest number, because a single one may be far off.
    """
    rows = [array.reshape(-1, array.shape[-1]) for array in numbers if array.size]
    ends = [end for array in rows for end in (np.fmax.reduce(array), -np.fmin.reduce(array))]
    largest = np.fmax.reduce(np.abs(ends)) if ends else np.zeros(0)
    return ROUNDING * float(np.median(largest[np.isfinite(largest)])) if np.isfinite(largest).any() else 0.0


def q_values(p: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Benjamini-Hochberg q values over all finite p values: about 5% of the scores with q <= 0.05 are false positives.

    Args:
        p: p values of any shape; NaN stays NaN and does not count as a test.

    Raises:
        ValueError: if a p value is outside 0..1.

    >>> import numpy as np
    >>> q_values(np.array([0.01, 0.04, np.nan, 0.03])).round(3).tolist()
    [0.03, 0.04, nan, 0.04]
    """
    p = np.asarray(p, dtype=np.float64)
    finite = ~np.isnan(p)
    if ((p[finite] < 0) | (p[finite] > 1)).any():
        raise ValueError("p contains values outside 0..1; give probabilities, with NaN for 'not tested'")
    q = np.full(p.shape, np.nan)
    if finite.any():
        order = np.argsort(tested := p[finite])
        at_rank = tested[order] * (len(tested) / np.arange(1, len(tested) + 1))
        adjusted = np.empty_like(tested)
        adjusted[order] = np.minimum.accumulate(at_rank[::-1])[::-1].clip(0, 1)
        q[finite] = adjusted
    return q


def share_interval(
    share: Float[np.ndarray, "*shape"],
    n: Num[np.ndarray, "..."],
    level: float = 0.95,
    quantile: Float[np.ndarray, "*shape"] | None = None,
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Wilson's interval (1927) for a share of ``n`` independent cases; its width is never 0, even for 0 and 1."""
    z = ndtri((1 + level) / 2) if quantile is None else quantile
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.clip(centre - reach, 0, None), np.clip(centre + reach, None, 1)


def jackknife_variance(without: Float[np.ndarray, " cluster"]) -> float:
    """Jackknife variance of an estimate, from its values with each cluster left out once (Tukey 1958)."""
    n = len(without)
    return float((n - 1) / n * ((without - without.mean()) ** 2).sum())


def cluster_draws(cluster: Sequence[object] | np.ndarray, n: int, seed: int) -> Float[np.ndarray, "draw prompt"]:
    """How often each prompt counts in each of ``n`` bootstrap draws of whole clusters."""
    groups = numbered_clusters(len(cluster), cluster)
    n_clusters = groups.max() + 1
    share = np.full(n_clusters, 1 / n_clusters)
    return np.random.default_rng(seed).multinomial(n_clusters, share, size=n)[:, groups].astype(np.float64)


def top_shares(scores: Float[np.ndarray, "draw layer head"], k: int) -> Float[np.ndarray, "layer head"]:
    """For each head, the share of the draws with its score in which it is among the ``k`` largest; NaN without any."""
    flat = scores.reshape(len(scores), -1)
    measured = np.isfinite(flat)
    order = np.argsort(np.where(measured, -flat, np.inf), axis=1, kind="stable")[:, :k]
    inside = np.zeros(flat.shape, dtype=bool)
    np.put_along_axis(inside, order, True, axis=1)
    drawn = measured.sum(0)
    share = np.where(drawn > 0, (inside & measured).sum(0) / np.maximum(drawn, 1), np.nan)
    return share.reshape(scores.shape[1:])


def mean_over_prompts(values: Float[np.ndarray, "*batch prompt"]) -> Float[np.ndarray, "*batch"]:
    """Mean over the last axis, ignoring NaN; NaN, without a warning, if all values are NaN. Infinite values count."""
    values = np.asarray(values, dtype=np.float64)
    count = (~np.isnan(values)).sum(axis=-1)
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan)


def _interval_of_share(values: np.ndarray, batch: Estimates, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a share, or of a difference of shares, as a fraction of ``bounds.high``."""
    n, clusters, q = batch.counts.sum(axis=1), (batch.counts > 0).sum(axis=1), batch.quantile
    up, down = (np.nansum(np.clip(sign * values, 0, None), axis=1) / n for sign in (1, -1))
    spread = up + down - (up - down) ** 2
    variance = (batch.error / bounds.high) ** 2
    equal = (spread <= 0) | (variance <= 0)
    effective = np.where(equal, clusters, np.minimum(spread / np.where(equal, 1, variance) + 1, n))
    if bounds.low == 0:
        return share_interval(up, effective, quantile=q)
    # half a prompt more with 1, half with -1, one with 0
    more, less, size = up * effective + 0.5, down * effective + 0.5, effective + 2
    reach = q * np.sqrt(np.maximum(more + less - (more - less) ** 2 / size, 0)) / size
    return (more - less) / size - reach, (more - less) / size + reach


def _interval_at_bound(batch: Estimates, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """The interval of values that are all equal to one bound; NaN for other values."""
    mean, clusters = batch.mean, (batch.counts > 0).sum(axis=1)
    at_end = (batch.error == 0) & ((mean == bounds.low) | (mean == bounds.high))
    width = bounds.high - bounds.low
    ends = share_interval(np.where(mean == bounds.high, 1.0, 0.0), clusters, quantile=batch.quantile)
    low, high = (np.where(at_end, bounds.low + width * end, np.nan) for end in ends)
    return low, high


def _interval_of_positive(batch: Estimates) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a mean of positive values, on the log scale; infinite if one cluster has the whole sum."""
    total, size = batch.totals.sum(axis=1, keepdims=True), batch.counts.sum(axis=1, keepdims=True)
    has = batch.counts > 0
    clusters = has.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        logs = np.where(has, np.log((total - batch.totals) / np.where(has, size - batch.counts, 1)), 0)
        deviations = np.where(has, logs - logs.sum(axis=1, keepdims=True) / clusters[:, None], 0)
        error = np.sqrt((clusters - 1) / clusters * (deviations**2).sum(axis=1))
        spread = np.exp(batch.quantile * error)
        return batch.mean / spread, batch.mean * spread


class _Signs:
    """Sign patterns as columns, for some clusters at a time; ``exact`` if they are all possible patterns."""

    def __init__(self, n_clusters: int, n: int, seed: int) -> None:
        self._n_clusters, self._seed, self.exact = n_clusters, seed, 2**n_clusters <= EXACT_UP_TO
        self.patterns = 2**n_clusters if self.exact else n
        self._cached: np.ndarray | None = None
        if self.exact:
            self._cached = (np.arange(self.patterns) >> np.arange(n_clusters)[:, None]) & 1
        elif n_clusters * n <= _CACHED_SIGNS:
            self._cached = self._drawn(np.random.default_rng(seed), n_clusters)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The clusters of each block, and their signs [cluster, pattern], the same in every pass."""
        # a multiple of four clusters, because one draw makes four signs: so the signs do not depend on the block size
        step = max(4, _SIGNS_AT_ONCE // self.patterns // 4 * 4)
        rng = np.random.default_rng(self._seed)
        for first in range(0, self._n_clusters, step):
            last = min(first + step, self._n_clusters)
            bits = self._drawn(rng, last - first) if self._cached is None else self._cached[first:last]
            yield slice(first, last), 1.0 - 2.0 * bits

    def share(self, count: np.ndarray) -> np.ndarray:
        """The share of patterns; if they are drawn, the observed pattern counts in addition."""
        return count / self.patterns if self.exact else (1 + count) / (1 + self.patterns)

    def _drawn(self, rng: np.random.Generator, clusters: int) -> np.ndarray:
        return rng.integers(0, 2, size=(clusters, self.patterns), dtype=np.int8)


@dataclass
class _Flips:
    """The sums of some rows when the signs of clusters are flipped."""

    rows: np.ndarray  # their indices
    sums: np.ndarray  # the absolute sum of a row under each pattern [row, pattern]
    observed: np.ndarray  # the observed absolute sum minus its rounding error [row, 1]
    size: np.ndarray  # the root of the sum of squares, which no pattern changes; 1 if all are 0 [row, 1]


def _flips(clustered: Clustered, signs: _Signs, rows: np.ndarray) -> Iterator[_Flips]:
    """The sums of rows under all patterns of signs, in the order of the rows, for some rows at a time."""
    for part in parts(rows, signs.patterns, _SUMS_AT_ONCE):
        flipped = np.zeros((len(part), signs.patterns))
        observed, rounding, squares = np.zeros((3, len(part), 1))
        for clusters, block in signs.blocks():
            totals = clustered.sums(part, clusters)[0]
            observed += totals.sum(axis=1, keepdims=True)
            rounding += 1e-12 * np.abs(totals).sum(axis=1, keepdims=True)
            squares += (totals**2).sum(axis=1, keepdims=True)
            for start in range(0, signs.patterns, _PATTERNS_AT_ONCE):
                patterns = slice(start, start + _PATTERNS_AT_ONCE)
                flipped[:, patterns] += totals @ block[:, patterns]
        size = np.sqrt(np.where(squares > 0, squares, 1))
        yield _Flips(part, np.abs(flipped, out=flipped), np.abs(observed) - rounding, size)
