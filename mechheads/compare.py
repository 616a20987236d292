"""How far two sets of head scores agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata


@dataclass(frozen=True)
class Comparison:
    """Agreement of two scores over the same heads.

    Attributes:
        pearson, spearman: correlation over the cells that both measured; NaN where it is not defined.
        overlap: share of the ``k`` largest of the one that are also among the ``k`` largest of the other.
        k: how many were taken as the largest.
        n_heads: how many cells both measured: heads, or heads times labels where there is an extra dimension.
        names: of the two scores.
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
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
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


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:k]


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])
