"""How many tokens go through the model at a time."""

from __future__ import annotations

from mechheads.limits import Limits
from mechheads.model.core import ModelCore


def token_bytes(model: ModelCore, pos: int) -> int:
    """Memory that one token needs inside a block, in bytes."""
    return model.dtype.itemsize * (6 * model.d_model + 4 * model.backend.d_mlp + 3 * model.n_heads * pos)


def tokens_in_run(model: ModelCore, limits: Limits, pos: int) -> int:
    """How many tokens a cached run computes at a time.

    If weights are on disk, each part of a run reads them again. So a run takes as many tokens as fit into a quarter of
    the memory.
    """
    if model.backend.on_disk is None:
        return limits.run_tokens
    return max(limits.run_tokens, limits.memory // 4 // token_bytes(model, pos))
