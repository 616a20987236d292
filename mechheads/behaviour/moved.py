"""The norm of what a head moves: of its values, or of its z, after W_O."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from mechheads.model.model import Model


def written_by(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of each head, with the norm's weight or multiplier after attention."""
    return model.W_O[layer].float() * model.attention_out_scale(layer)


def values_of(model: Model, v: Float[Tensor, "window pos kv d_head"]) -> Float[Tensor, "window pos head d_head"]:
    """The values that each head reads; with grouped queries several heads read the same."""
    return v.repeat_interleave(model.n_heads // model.n_kv_heads, dim=2)


def norm_of(
    states: Float[Tensor, "window pos head d_head"], W_O: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "window pos head"]:
    """The norm of states times W_O, from W_O W_O^T."""
    by_head = states.transpose(1, 2)
    return ((by_head @ (W_O @ W_O.mT)) * by_head).sum(-1).clamp_min(0).sqrt().transpose(1, 2)
