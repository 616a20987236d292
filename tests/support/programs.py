"""The programs of attention of the package, written out key by key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def slow(name: str, tokens: Sequence[object]) -> np.ndarray:
    """The weights of a program of the package, key by key."""
    n = len(tokens)
    weights = np.zeros((n, n))
    for q in range(n):
        keys = {
            "first": [0],
            "previous": [q - 1] if q else [0],
            "self": [q],
            "uniform": [*range(q + 1)],
            "duplicates": [k for k in range(q) if tokens[k] == tokens[q]],
            "induction": [k for k in range(1, q) if tokens[k - 1] == tokens[q]],
        }[name] or [0]
        weights[q, keys] = 1 / len(keys)
    return weights
