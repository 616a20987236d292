"""Gates with chosen values, as if they had been fitted."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from mechheads.gating import Gates


def made_gates(keep: np.ndarray, drop: np.ndarray, interrupted: bool = False) -> Gates:
    """Gates [seed, layer, head] as if they had been fitted."""
    gates = np.stack([np.full_like(keep, 0.5), keep, drop])
    fits, seeds = ("none", "keep", "drop"), tuple(range(len(keep)))
    losses = pd.DataFrame(product(fits, seeds), columns=["fit", "seed"]).assign(update=1, loss=0.0, objective=0.0)
    return Gates("made", fits, seeds, gates, losses, {"interrupted": interrupted})


def same(one: Gates, other: Gates) -> bool:
    """Whether two fits gave the same gates and losses, to the bit."""
    return one.values.tobytes() == other.values.tobytes() and one.losses.equals(other.losses)
