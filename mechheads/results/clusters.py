"""Sums over the prompts of each cluster; from them, the mean with its standard error and degrees of freedom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

LEAST_CLUSTERS = 3
"""The fewest clusters for an interval."""
_CELLS_AT_ONCE = 2**18
"""The most numbers in each of several arrays: 2 MB."""


def numbered_clusters(n_prompts: int, cluster: Sequence[object] | np.ndarray | None) -> np.ndarray:
    """The number of each prompt's cluster; clusters are numbered in order of first appearance."""
    labels = [str(c) for c in (range(n_prompts) if cluster is None else cluster)]
    if len(labels) != n_prompts:
        raise ValueError(f"cluster has {len(labels)} labels for {n_prompts} prompts; give one label per prompt")
    number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
    return np.array([number[label] for label in labels])


_LARGEST = 2.0**200
"""Larger numbers, whose cubes would overflow, count as infinite."""


class Clustered:
    """Rows of values minus ``null``, and sums over the prompts of each cluster, computed for some rows at a time."""

    def __init__(
        self,
        values: np.ndarray,
        cluster: Sequence[object] | np.ndarray | None,
        null: float = 0.0,
        rounding: float = 0.0,
    ) -> None:
        values = np.asarray(values, dtype=np.float64)
        if values.ndim == 0 or values.shape[-1] == 0:
            raise ValueError(f"values has shape {values.shape}; it needs at least one prompt on its last axis")
        self._rows, self._null, self.shape = values.reshape(-1, values.shape[-1]), null, values.shape[:-1]
        self._rounding = rounding
        self._groups = numbered_clusters(values.shape[-1], cluster)
        self.n_clusters = int(self._groups.max()) + 1
        self._order = np.argsort(self._groups, kind="stable")
        self._first = np.searchsorted(self._groups[self._order], np.arange(self.n_clusters + 1))
        self.finite, self.measured = np.ones((2, len(self._rows)), dtype=bool)
        for part in self.parts():
            deviations = self._deviations(part)
            self.finite[part] = ~(np.abs(deviations) > _LARGEST).any(axis=1)
            self.measured[part] = ~np.isnan(deviations).all(axis=1)

    def _deviations(self, at: Any) -> np.ndarray:
        """Values minus the null; 0 if the difference is only rounding."""
        deviations = self._rows[at] - self._null
        return np.where(np.abs(deviations) <= self._rounding, 0.0, deviations) if self._rounding else deviations

    def nans(self) -> np.ndarray:
        """NaN for each row."""
        return np.full(len(self._rows), np.nan)

    @property
    def first_prompts(self) -> np.ndarray:
        """The index of the first prompt of each cluster."""
        return self._order[self._first[:-1]]

    def usable(self) -> np.ndarray:
        """The indices of the rows that have values, all of them finite."""
        return np.flatnonzero(self.finite & self.measured)

    def parts(self) -> Iterator[np.ndarray]:
        """The indices of all rows, part by part."""
        return parts(np.arange(len(self._rows)), self._rows.shape[1])

    def sums(self, rows: np.ndarray, clusters: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """The sum and the number of the measured values in every cluster [row, cluster]."""
        first, last, _ = clusters.indices(self.n_clusters)
        prompts = self._order[self._first[first] : self._first[last]]
        totals, counts = np.empty((2, len(rows), last - first))
        for part in parts(np.arange(len(rows)), len(prompts)):
            deviations = self._deviations((rows[part][:, None], prompts))
            at = (self._groups[prompts] - first) + (last - first) * np.arange(len(part))[:, None]
            finite = np.where(np.abs(deviations) <= _LARGEST, deviations, 0.0)
            for sums, summands in ((totals, finite), (counts, ~np.isnan(deviations))):
                sums[part] = np.bincount(at.ravel(), summands.ravel(), sums[part].size).reshape(len(part), -1)
        return totals, counts


@dataclass
class Estimates:
    """Estimates for some rows that have values in at least three clusters."""

    rows: np.ndarray  # their indices
    totals: np.ndarray  # the sum of the values in each cluster [row, cluster]
    counts: np.ndarray  # the number of values in each cluster [row, cluster]
    mean: np.ndarray
    error: np.ndarray  # the standard error of the mean
    skew: np.ndarray
    quantile: np.ndarray  # of Student's t with the row's degrees of freedom


def estimates(clustered: Clustered, level: float) -> Iterator[Estimates]:
    """Mean and error of rows, for some rows at a time; ``clustered_interval`` explains them."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must be between 0 and 1, such as 0.95")
    for part in clustered.parts():
        totals, counts = clustered.sums(part)
        usable = ((counts > 0).sum(axis=1) >= LEAST_CLUSTERS) & clustered.finite[part]
        part, total, count = part[usable], totals[usable], counts[usable]
        size = count.sum(axis=1, keepdims=True)
        mean = total.sum(axis=1, keepdims=True) / size
        share = count / size
        deviations = (total - mean * count) / size / np.sqrt(1 - share)
        error = np.sqrt((deviations**2).sum(axis=1))
        cubed = error**3
        skew = (deviations**3).sum(axis=1) / np.where(cubed > 0, cubed, 1)
        quantile = _t_quantile(level, _degrees_of_freedom(share))
        yield Estimates(part, total, count, mean[:, 0], error, skew, quantile)


def parts(index: np.ndarray, width: int, cells: int = _CELLS_AT_ONCE) -> Iterator[np.ndarray]:
    step = max(1, cells // width)
    for start in range(0, len(index), step):
        yield index[start : start + step]


def _degrees_of_freedom(share: np.ndarray) -> np.ndarray:
    """Satterthwaite's degrees of freedom of CR2 in closed form, for clusters with these shares of the prompts."""
    # (tr A)^2 / tr A^2, where A is the quadratic form of the squared error
    rest = 1 - share
    return 1 / ((share**2 * (1 - 2 * share) / rest**2).sum(axis=1) + (share**2 / rest).sum(axis=1) ** 2)


def _t_quantile(level: float, freedom: np.ndarray) -> np.ndarray:
    distinct, of_row = np.unique(freedom.round(9), return_inverse=True)
    return stdtrit(distinct, (1 + level) / 2)[of_row]
