"""The rotation of a set of states: principal angles between left singular subspaces, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import eigh
from scipy.stats import t as student_t

from mechheads.results.stats import jackknife_variance

_TIE = 1e-6
"""Singular values that differ by less than this share of the largest count as equal, because states are float32."""


def principal_angles(
    a: Float[np.ndarray, "*batch row r"], b: Float[np.ndarray, "*batch row r"]
) -> Float[np.ndarray, "*batch r"]:
    """Angles in degrees, smallest first, between the spaces spanned by orthonormal columns.
    Cosines are singular values of a^T b, sines of b - a a^T b, exact for small angles (Björck & Golub 1973)."""
    overlap = np.swapaxes(a, -1, -2) @ b
    cosines = np.linalg.svd(overlap, compute_uv=False)
    sines = np.linalg.svd(b - a @ overlap, compute_uv=False)[..., ::-1]
    return np.degrees(np.arctan2(sines, cosines))


def left_subspace(
    states: Float[np.ndarray, "*batch prompt d"], r: int
) -> tuple[Float[np.ndarray, "*batch prompt r"], Bool[np.ndarray, "*batch"]]:
    """The first ``r`` left singular vectors of the states, uncentred, and whether they are unique.
    They are not if singular values ``r`` and ``r + 1`` are equal: any rotation of these two vectors will do."""
    vectors, values, _ = np.linalg.svd(states, full_matrices=False)
    values = np.concatenate([values, np.zeros((*values.shape[:-1], 1))], axis=-1)
    gap = values[..., r - 1] - values[..., r]
    return vectors[..., :r], gap > _TIE * values[..., 0]


_SURE = 1e-4
"""Gram matrices are used if the eigenvalues on both sides of the cut differ by this share of the largest.

The squares of singular values lose digits: a vector is off by about the rounding of float64 over this share, 1e-10
degrees. For smaller differences the singular vectors come from the states themselves.
"""


def left_subspaces(
    states: Float[np.ndarray, "prompt d"], views: Bool[np.ndarray, "view prompt"], r: int
) -> tuple[Float[np.ndarray, "view prompt r"], Bool[np.ndarray, " view"]]:
    """``left_subspace`` of the states of the prompts in each view, with zeros for the other prompts.
    From the Gram matrix of the prompts or of the dimensions, the smaller; rows left out are subtracted from it."""
    states = np.asarray(states, dtype=np.float64)
    n, d = states.shape
    by_prompt = n <= d
    whole = states @ states.T if by_prompt else states.T @ states
    vectors, defined = np.zeros((len(views), n, r)), np.ones(len(views), dtype=bool)
    square: np.ndarray | None = None
    for view, inside in enumerate(views):
        left_out = states[~inside]
        gram = whole[np.ix_(inside, inside)] if by_prompt else whole - left_out.T @ left_out
        values, eigenvectors = eigh(gram, subset_by_index=[max(0, len(gram) - r - 1), len(gram) - 1])
        after = values[-r - 1] if len(values) > r else 0.0
        largest = values[-1] if by_prompt else np.trace(whole)
        if len(values) >= r and values[-r] - after > _SURE * largest:
            last = eigenvectors[:, -r:]
            vectors[view, inside] = last if by_prompt else np.linalg.qr(states[inside] @ last)[0]
            continue
        if square is None:
            # [prompt, at most prompt], with the same left singular vectors, whichever rows are left out
            square = cast(np.ndarray, np.linalg.qr(states.T, mode="r")).T
        exact, defined[view] = left_subspace(inside[:, None] * square, r)
        vectors[view, :, : exact.shape[1]] = exact
    return vectors, defined


_MOST_GROUPS = 30


class Rotation:
    """Generalized Ships of ablated states against intact ones, X' and X [prompt, d_model]: sum of arccos of U_r^T U'_r.
    With more than 30 clusters, the jackknife leaves out groups of them, because each step computes new vectors."""

    _LEVEL = 0.95

    def __init__(
        self,
        intact: Float[np.ndarray, "prompt d"],
        r: int = 1,
        cluster: Sequence[object] | None = None,
    ) -> None:
        labels = [str(label) for label in (range(len(intact)) if cluster is None else cluster)]
        group = {label: i % _MOST_GROUPS for i, label in enumerate(dict.fromkeys(labels))}
        labels = [str(group[label]) for label in labels]
        each = list(dict.fromkeys(labels))
        self.r, self._n_clusters = r, len(each)
        without = [[label != left_out for label in labels] for left_out in each]
        self._views = np.array([[True] * len(labels), *without])
        self._spaces, self._defined = left_subspaces(intact, self._views, r)
        if not self._defined[0]:
            raise ValueError(
                f"r is {r}: singular values {r} and {r + 1} of the intact states are equal, so the angle is "
                "undefined; choose another r"
            )

    def __call__(self, ablated: Float[np.ndarray, "prompt d"]) -> tuple[float, float, float]:
        """The score and its 95% interval, in degrees; NaN without U'_r, or the interval with fewer than r + 2 clusters.
        The interval is a jackknife over clusters of the log score, with Student's t of n_clusters - 1 degrees."""
        spaces, defined = left_subspaces(ablated, self._views, self.r)
        angles = principal_angles(self._spaces, spaces).sum(-1)
        angles[~(defined & self._defined)] = np.nan
        low, high = self._interval(angles[0], angles[1:])
        return float(angles[0]), low, high

    def _interval(self, angle: float, without: Float[np.ndarray, " cluster"]) -> tuple[float, float]:
        n = self._n_clusters
        if n < self.r + 2 or not (angle > 0 and (without > 0).all()):
            return np.nan, np.nan
        logs = np.log(without)
        spread = np.exp(student_t.ppf((1 + self._LEVEL) / 2, n - 1) * np.sqrt(jackknife_variance(logs)))
        return float(angle / spread), float(min(angle * spread, 90.0 * self.r))
