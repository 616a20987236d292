"""Gates with chosen values, as if they had been fitted."""

from __future__ import annotations

import numpy as np

from mechheads.gating import Gates


def made_gates(keep: np.ndarray, drop: np.ndarray, interrupted: bool = False) -> Gates:
    """Gates [seed, layer, head] as if they had been fitted."""
    gates = np.stack([np.full_like(keep, 0.5), keep, drop])
    curve = np.zeros((3, len(keep), 1))
    return Gates.of(
        gates,
        ["none", "keep", "drop"],
        list(range(len(keep))),
        (curve, curve, np.ones((3, len(keep)), int)),
        name="made",
        provenance={"interrupted": interrupted},
    )
