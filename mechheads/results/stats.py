"""Statistics of means over prompts: clustered intervals, cluster sign flips, false discovery rate.

Prompts made from one template or about one entity are not independent, so whole clusters are compared or flipped, never
single prompts. All functions are vectorised over every axis but the last, take NaN as "not measured", and return NaN if
a statistic is not defined. However many prompts there are, they take less than 40 MB besides the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import false_discovery_control, norm, t as student_t

from mechheads.messages.arguments import check_at_least

EXACT_UP_TO = 4096
LEAST_CLUSTERS = 3
"""The fewest clusters for an interval."""
_CELLS_AT_ONCE = 2**18
"""How many numbers an array has at most that is one of several: 2 MB."""
_SUMS_AT_ONCE = 2**21
"""How many sums of sign patterns are kept at most, one for each row and pattern: 16 MB."""
_SIGNS_AT_ONCE, _PATTERNS_AT_ONCE = 2**19, 1024
_KEPT_SIGNS = 2**23
"""How many signs are kept for all rows, 8 MB; more are drawn again for each part of the rows."""
_ORDINARY = 200
"""Rows whose largest number is between 2**-200 and 2**200 are not scaled: no sum or cube of theirs overflows."""
_NEARLY_ONE = 1 - 1e-12


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
        ``cluster_range``) or a value is infinite. An end that is larger than any number is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length, or ``level`` is not between 0 and 1.

    >>> import numpy as np
    >>> low, high = clustered_interval(np.array([1.0, 1.2, 2.0, 2.2, 3.0, 3.2]), ["a", "a", "b", "b", "c", "c"])
    >>> low.round(2).tolist(), high.round(2).tolist()
    (-0.38, 4.58)
    """
    of = _Clustered(values, cluster)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1, such as 0.95")
    low, high = of.nothing(), of.nothing()
    for part in of.parts():
        totals, counts, exponent = of.sums(part)
        usable = ((counts > 0).sum(axis=1) >= LEAST_CLUSTERS) & of.finite[part]
        part, total, count, exponent = part[usable], totals[usable], counts[usable], exponent[usable]
        size = count.sum(axis=1, keepdims=True)
        mean = total.sum(axis=1, keepdims=True) / size
        share = count / size
        off = (total - mean * count) / size / np.sqrt(1 - share)
        error = np.sqrt((off**2).sum(axis=1))
        cubed = error**3
        skew = (off**3).sum(axis=1) / np.where(cubed > 0, cubed, 1)
        q = _t_quantile(level, _degrees_of_freedom(share))
        longer = skew * (2 * q**2 + 1) / 6
        low[part] = _times_two_to(exponent, mean[:, 0] - error * (q + np.maximum(-longer, 0)))
        high[part] = _times_two_to(exponent, mean[:, 0] + error * (q + np.maximum(longer, 0)))
    return low.reshape(of.shape), high.reshape(of.shape)


def cluster_range(
    values: Float[np.ndarray, "*batch prompt"], cluster: Sequence[object] | np.ndarray | None = None
) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
    """The smaller and the larger mean of two clusters, which are too few for an interval.

    Args:
        values: one value per prompt on the last axis; NaN means "not measured".
        cluster: a label per prompt; ``None`` makes every prompt its own cluster.

    Returns:
        Both ends, one per row; NaN if more or fewer than two clusters were measured, or a value is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length.

    >>> import numpy as np
    >>> low, high = cluster_range(np.array([1.0, 2.0, 5.0]), ["a", "a", "b"])
    >>> float(low), float(high)
    (1.5, 5.0)
    """
    of = _Clustered(values, cluster)
    low, high = of.nothing(), of.nothing()
    for part in of.parts():
        totals, counts, exponent = of.sums(part)
        two = ((counts > 0).sum(axis=1) == LEAST_CLUSTERS - 1) & of.finite[part]
        means = totals[two] / np.where(counts[two] > 0, counts[two], np.nan)
        low[part[two]] = _times_two_to(exponent[two], np.nanmin(means, axis=1, initial=np.inf))
        high[part[two]] = _times_two_to(exponent[two], np.nanmax(means, axis=1, initial=-np.inf))
    return low.reshape(of.shape), high.reshape(of.shape)


def sign_flip_p(
    values: Float[np.ndarray, "*batch prompt"],
    cluster: Sequence[object] | np.ndarray | None = None,
    *,
    null: float = 0.0,
    seed: int = 0,
    n: int = 9999,
) -> Float[np.ndarray, "*batch"]:
    """Two-sided p value of the hypothesis that the mean is ``null``, from flipping the signs of whole clusters.

    The test assumes symmetry: a cluster's deviation from ``null`` is as likely to be x as -x. Then every pattern of
    signs is as likely as the observed one, and p is the share of patterns whose mean is at least as far from ``null``.
    For skewed effects, p can be small although their mean is ``null`` (docs/uncertainty.md says how often). With up to
    12 clusters, all patterns are counted and p is exact. With more, ``n`` random patterns are drawn, and
    p = (1 + number at least as far) / (1 + n), which is never 0.

    Args:
        values: one value per prompt on the last axis; NaN means "not measured".
        cluster: a label per prompt; ``None`` makes every prompt its own cluster.
        null: the mean to test against, in the unit of ``values``.
        seed: seed of the random patterns.
        n: the number of random patterns.

    Returns:
        One p value per row; NaN if nothing was measured or a value is infinite.

    Raises:
        ValueError: if ``cluster`` has the wrong length, or ``n`` is below 1.

    >>> import numpy as np
    >>> float(sign_flip_p(np.array([1.0, 2.0, 3.0])))  # 2 of the 8 patterns: +++ and ---
    0.25
    """
    of = _Clustered(values, cluster, null)
    check_at_least(1, n=n)
    signs = _Signs(of.n_clusters, n, seed)
    p = of.nothing()
    for part in _parts(np.flatnonzero(of.finite & of.measured), signs.patterns, _SUMS_AT_ONCE):
        flipped = np.zeros((len(part), signs.patterns))
        seen, rounding = np.zeros((2, len(part), 1))
        for clusters, some in signs.blocks():
            totals = of.sums(part, clusters)[0]
            seen += totals.sum(axis=1, keepdims=True)
            rounding += 1e-12 * np.abs(totals).sum(axis=1, keepdims=True)
            for start in range(0, signs.patterns, _PATTERNS_AT_ONCE):
                patterns = slice(start, start + _PATTERNS_AT_ONCE)
                flipped[:, patterns] += totals @ some[:, patterns]
        as_far = (np.abs(flipped, out=flipped) >= np.abs(seen) - rounding).sum(axis=1)
        p[part] = as_far / signs.patterns if signs.exact else (1 + as_far) / (1 + n)
    return p.reshape(of.shape)


def q_values(p: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Benjamini-Hochberg q values over all finite p values: of the scores with q <= 0.05, about 5% are false finds.

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
        q[finite] = false_discovery_control(p[finite], method="bh")
    return q


def share_interval(
    share: Float[np.ndarray, "*shape"], n: Int[np.ndarray, "..."], level: float = 0.95
) -> tuple[Float[np.ndarray, "*shape"], Float[np.ndarray, "*shape"]]:
    """Wilson's interval for a share of ``n`` independent cases; its width is never 0, even for shares of 0 and 1.

    Wilson 1927: the values p with |share - p| <= z sqrt(p (1 - p) / n).

    >>> low, high = share_interval(np.array([0.0, 0.5]), np.array([10, 10]))
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237], [0.278, 0.763])
    """
    z = norm.ppf((1 + level) / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.clip(centre - reach, 0, None), np.clip(centre + reach, None, 1)


def jackknife_variance(without: Float[np.ndarray, " cluster"]) -> float:
    """Jackknife variance of an estimate, from its values with each cluster left out once (Tukey 1958).

    >>> jackknife_variance(np.array([3.5, 3.0, 2.5]))  # of the mean of 2, 3 and 4: the square of its standard error
    0.3333333333333333
    """
    n = len(without)
    return float((n - 1) / n * ((without - without.mean()) ** 2).sum())


def correlation_interval(r: float, *without: Float[np.ndarray, " cluster"], level: float = 0.95) -> tuple[float, float]:
    """Interval of a correlation, from leaving out each cluster once: a jackknife on Fisher's scale, atanh r.

    Args:
        r: the correlation.
        *without: for each kind of cluster, such as layers and templates, the correlations with one cluster left out.
            The variances of different kinds are added, which makes the interval rather too wide; the degrees of freedom
            are Satterthwaite's.
        level: the share of such intervals that should contain the true correlation.

    Returns:
        Both ends; NaN if the first kind has fewer than three clusters, or a correlation is not defined.

    >>> low, high = correlation_interval(0.8, np.array([0.7, 0.8, 0.85, 0.82]))
    >>> round(low, 2), round(high, 2)
    (0.3, 0.96)
    """
    several = [np.asarray(of_kind) for of_kind in without if len(of_kind) > 1]
    if len(without[0]) < LEAST_CLUSTERS or not np.isfinite(np.concatenate([[r], *several])).all():
        return float("nan"), float("nan")
    variances = np.array([jackknife_variance(_fisher(of_kind)) for of_kind in several])
    total, by_freedom = variances.sum(), sum(v**2 / (len(of) - 1) for v, of in zip(variances, several, strict=True))
    if total == 0:
        return r, r
    reach = student_t.ppf((1 + level) / 2, total**2 / by_freedom) * np.sqrt(total)
    return float(np.tanh(_fisher(r) - reach)), float(np.tanh(_fisher(r) + reach))


def _fisher(r: Any) -> Any:
    return np.arctanh(np.clip(r, -_NEARLY_ONE, _NEARLY_ONE))


def cluster_draws(cluster: Sequence[object] | np.ndarray, n: int, seed: int) -> Float[np.ndarray, "draw prompt"]:
    """How often each prompt counts in each of ``n`` bootstrap draws of whole clusters.

    >>> cluster_draws(["a", "a", "b"], 2, seed=1).tolist()
    [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    """
    groups = _groups(len(cluster), cluster)
    n_clusters = groups.max() + 1
    share = np.full(n_clusters, 1 / n_clusters)
    return np.random.default_rng(seed).multinomial(n_clusters, share, size=n)[:, groups].astype(np.float64)


def top_shares(scores: Float[np.ndarray, "draw layer head"], k: int) -> Float[np.ndarray, "layer head"]:
    """The share of draws in which each head is among the ``k`` with the largest score.

    Draws in which a head has no score do not count for it. Heads without any score are NaN.

    >>> top_shares(np.array([[[3.0, 2.0, 1.0]], [[3.0, 1.0, 2.0]]]), 2).tolist()
    [[1.0, 0.5, 0.5]]
    """
    flat = scores.reshape(len(scores), -1)
    measured = np.isfinite(flat)
    order = np.argsort(np.where(measured, -flat, np.inf), axis=1, kind="stable")[:, :k]
    inside = np.zeros(flat.shape, dtype=bool)
    np.put_along_axis(inside, order, True, axis=1)
    drawn = measured.sum(0)
    share = np.where(drawn > 0, (inside & measured).sum(0) / np.maximum(drawn, 1), np.nan)
    return share.reshape(scores.shape[1:])


def mean_over_prompts(values: Float[np.ndarray, "*batch prompt"]) -> Float[np.ndarray, "*batch"]:
    """Mean over the last axis without NaN; if all values are NaN, the mean is NaN, without a warning.

    The mean of finite values is finite. Infinite values make it infinite, or NaN if they are of both signs.

    >>> mean_over_prompts(np.array([[1.0, np.nan, 3.0], [1.0, np.inf, 3.0]])).tolist()
    [2.0, inf]
    """
    values = np.asarray(values, dtype=np.float64)
    rows = values.reshape(-1, values.shape[-1])
    means = np.full(len(rows), np.nan)
    for part in _parts(np.arange(len(rows)), values.shape[-1]):
        some = rows[part]
        measured = ~np.isnan(some)
        count = measured.sum(axis=-1)
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.where(measured, some, 0.0).sum(axis=-1)
            means[part] = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        if (beyond := ~np.isfinite(total) & ~np.isinf(some).any(axis=-1)).any():
            means[part[beyond]] = _mean_of_large(some[beyond])
    return means.reshape(values.shape[:-1])


def _mean_of_large(rows: np.ndarray) -> np.ndarray:
    """The means of rows whose sums are larger than any number."""
    exponent = _exponents(rows)
    return _times_two_to(exponent, np.nanmean(_times_two_to(-exponent[:, None], rows), axis=1))


def _groups(n_prompts: int, cluster: Sequence[object] | np.ndarray | None) -> np.ndarray:
    """The number of each prompt's cluster; clusters are numbered in the order in which they come."""
    labels = [str(c) for c in (range(n_prompts) if cluster is None else cluster)]
    if len(labels) != n_prompts:
        raise ValueError(f"cluster has {len(labels)} labels for {n_prompts} prompts; give one label per prompt")
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels])


class _Clustered:
    """Rows of values less ``null``, and sums over the prompts of each cluster, for a part of the rows at a time.

    Sums are of values divided by a power of two, one for each row. That changes no digit, and then neither a sum nor a
    cube of the largest or smallest numbers is outside of what floating point holds.

    Attributes:
        shape: of a statistic, one for each row.
        finite: whether a row has no infinite value.
        measured: whether a row has any value.
    """

    def __init__(self, values: np.ndarray, cluster: Sequence[object] | np.ndarray | None, null: float = 0.0) -> None:
        values = np.asarray(values, dtype=np.float64)
        if values.ndim == 0 or values.shape[-1] == 0:
            raise ValueError(f"values has shape {values.shape}; it needs at least one prompt on its last axis")
        self._rows, self._null, self.shape = values.reshape(-1, values.shape[-1]), null, values.shape[:-1]
        self._groups = _groups(values.shape[-1], cluster)
        self.n_clusters = int(self._groups.max()) + 1
        self._order = np.argsort(self._groups, kind="stable")
        self._first = np.searchsorted(self._groups[self._order], np.arange(self.n_clusters + 1))
        self._exponents = np.zeros(len(self._rows), dtype=np.int32)
        self.finite, self.measured = np.ones((2, len(self._rows)), dtype=bool)
        for part in self.parts():
            some = self._rows[part] - null
            self.finite[part], self.measured[part] = ~np.isinf(some).any(axis=1), ~np.isnan(some).all(axis=1)
            self._exponents[part] = _exponents(some)

    def nothing(self) -> np.ndarray:
        """NaN for each row."""
        return np.full(len(self._rows), np.nan)

    def parts(self) -> Iterator[np.ndarray]:
        """The indices of all rows, part by part."""
        return _parts(np.arange(len(self._rows)), self._rows.shape[1])

    def sums(self, rows: np.ndarray, clusters: slice = slice(None)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sum and number of the measured values of every cluster [row, cluster], and the exponents of the sums."""
        first, last, _ = clusters.indices(self.n_clusters)
        prompts = self._order[self._first[first] : self._first[last]]
        totals, counts = np.empty((2, len(rows), last - first))
        for part in _parts(np.arange(len(rows)), len(prompts)):
            some = self._rows[rows[part][:, None], prompts] - self._null
            at = (self._groups[prompts] - first) + (last - first) * np.arange(len(part))[:, None]
            kept = np.where(np.isfinite(some), some, 0.0)
            kept = _times_two_to(-self._exponents[rows[part]][:, None], kept)
            for sums, each in ((totals, kept), (counts, ~np.isnan(some))):
                sums[part] = np.bincount(at.ravel(), each.ravel(), sums[part].size).reshape(len(part), -1)
        return totals, counts, self._exponents[rows]


def _exponents(rows: np.ndarray) -> np.ndarray:
    """For each row the power of two that is just above its largest finite number; 0 for numbers of ordinary size."""
    found = np.frexp(np.where(np.isfinite(rows), np.abs(rows), 0.0).max(axis=-1))[1]
    return np.where(np.abs(found) > _ORDINARY, found, 0)


def _times_two_to(exponent: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Numbers times powers of two; infinite if that is larger than any number."""
    if not exponent.any():
        return numbers
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(numbers, exponent)


def _parts(index: np.ndarray, width: int, cells: int = _CELLS_AT_ONCE) -> Iterator[np.ndarray]:
    step = max(1, cells // width)
    for start in range(0, len(index), step):
        yield index[start : start + step]


def _degrees_of_freedom(share: np.ndarray) -> np.ndarray:
    """Satterthwaite's degrees of freedom of CR2 in closed form, for clusters with these shares of independent prompts.

    They are (tr A)^2 / tr A^2, where A is the quadratic form of the squared error; tr A is 1.
    """
    rest = 1 - share
    return 1 / ((share**2 * (1 - 2 * share) / rest**2).sum(axis=1) + (share**2 / rest).sum(axis=1) ** 2)


def _t_quantile(level: float, freedom: np.ndarray) -> np.ndarray:
    each, of_row = np.unique(freedom.round(9), return_inverse=True)
    return student_t.ppf((1 + level) / 2, each)[of_row]


class _Signs:
    """Sign patterns as columns, for some clusters at a time, always the same ones.

    Attributes:
        patterns: how many there are.
        exact: whether these are all possible patterns.
    """

    def __init__(self, n_clusters: int, n: int, seed: int) -> None:
        self._n_clusters, self._seed, self.exact = n_clusters, seed, 2**n_clusters <= EXACT_UP_TO
        self.patterns = 2**n_clusters if self.exact else n
        self._kept: np.ndarray | None = None
        if self.exact:
            self._kept = (np.arange(self.patterns) >> np.arange(n_clusters)[:, None]) & 1
        elif n_clusters * n <= _KEPT_SIGNS:
            self._kept = self._drawn(np.random.default_rng(seed), n_clusters)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The clusters of each block, and their signs [cluster, pattern]."""
        # a multiple of four clusters, because one draw makes four signs: then blocks have the signs of the whole
        step = max(4, _SIGNS_AT_ONCE // self.patterns // 4 * 4)
        rng = np.random.default_rng(self._seed)
        for first in range(0, self._n_clusters, step):
            last = min(first + step, self._n_clusters)
            bits = self._drawn(rng, last - first) if self._kept is None else self._kept[first:last]
            yield slice(first, last), 1.0 - 2.0 * bits

    def _drawn(self, rng: np.random.Generator, clusters: int) -> np.ndarray:
        return rng.integers(0, 2, size=(clusters, self.patterns), dtype=np.int8)
