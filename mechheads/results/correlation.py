"""Correlations of two arrays of scores, of values and of ranks, with intervals.

Heads of a layer read the same residual stream and are not independent, so intervals come from leaving out whole layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from mechheads.messages.arguments import check_at_least
from mechheads.messages.wrapped import Wrapped
from mechheads.results.stats import correlation_interval

_LEAST = 3
"""The fewest points for a correlation, because two points always correlate."""


@dataclass(frozen=True)
class Comparison(Wrapped):
    """Agreement of two scores over the same heads; made by ``HeadScores.compare``.

    Attributes:
        pearson, spearman: correlation over the cells that both measured; NaN if it is not defined.
        overlap: the share of the ``k`` largest of one score that are also among the ``k`` largest of the other.
        k: how many count as the largest.
        n_heads: how many cells both measured: heads, or heads times labels if there is an extra dimension.
        names: the names of the two scores.
    """

    pearson: float
    spearman: float
    overlap: float
    k: int
    n_heads: int
    names: tuple[str, str]

    def __repr__(self) -> str:
        chance = self.k / self.n_heads if self.n_heads else float("nan")
        return (
            f"{self.names[0]!r} against {self.names[1]!r} over {self.n_heads} heads: "
            f"Pearson {self.pearson:.3f}, Spearman {self.spearman:.3f}, "
            f"top-{self.k} overlap {self.overlap:.0%} (by chance {chance:.0%})"
        )


def compare(
    left: Float[np.ndarray, " cell"], right: Float[np.ndarray, " cell"], k: int, names: tuple[str, str]
) -> Comparison:
    """Compare two score vectors cell by cell, over the cells where both are finite.

    Raises:
        ValueError: if ``k`` is below 1.

    >>> import numpy as np
    >>> compare(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]), 2, ("x", "x squared"))
    'x' against 'x squared' over 3 heads: Pearson 0.990, Spearman 1.000, top-2 overlap 100% (by chance 67%)
    """
    from scipy.stats import rankdata

    check_at_least(1, k=k)
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    k = min(k, len(left))
    shared = np.intersect1d(_largest(left, k), _largest(right, k))
    return Comparison(
        pearson=_correlation(left, right),
        spearman=_correlation(rankdata(left), rankdata(right)),
        overlap=len(shared) / k if k else float("nan"),
        k=k,
        n_heads=len(left),
        names=names,
    )


def spearman(
    left: Float[np.ndarray, " head"], right: Float[np.ndarray, " head"], layer: Int[np.ndarray, " head"]
) -> tuple[float, float, float]:
    """Spearman's correlation and its interval, from leaving out each layer once."""
    if len(left) < _LEAST:
        return float("nan"), float("nan"), float("nan")
    kept = np.concatenate([np.ones((1, len(left)), dtype=bool), np.unique(layer)[:, None] != layer])
    n = kept.sum(1, keepdims=True)
    x, y = (np.where(kept, _ranks(values, kept) - (n + 1) / 2, 0) for values in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):  # ranks are halves, so these sums are exact
        xx, yy, xy = ((one * other).sum(1) * (1 / (n[:, 0] - 1)) for one, other in ((x, x), (y, y), (x, y)))
        r = (xy / np.sqrt(xx) / np.sqrt(yy)).clip(-1, 1)
    return float(r[0]), *correlation_interval(float(r[0]), r[1:])


def _ranks(values: Float[np.ndarray, " head"], kept: Bool[np.ndarray, "row head"]) -> Float[np.ndarray, "row head"]:
    """The ranks among the values that each row keeps; NaN for the others."""
    from scipy.stats import rankdata

    return rankdata(np.where(kept, values, np.nan), axis=1, nan_policy="omit")


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:k]


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])
