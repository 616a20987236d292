"""The QK and OV circuits of a head, as products of two thin matrices with the scales of the norms around them.

With row vectors, a head reads x through diag(s) W, with s the scale of the norm before attention. So its circuits are

    QK:  (s W_Q) (s W_K)^T      the score of a query x and a key y is x QK y^T / sqrt(d_head)
    OV:  (s W_V) (W_O t)        what attending to y writes is y OV

with t the scale of a norm after attention, ones if there is none. Both are d_model x d_model of rank d_head at most,
and are never computed as such. Biases and rotations by position are left out.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.model.model import Model

CircuitName = Literal["QK", "OV"]
Side = Float[Tensor, "head d_model d_head"]


def sides(model: Model, layer: int, circuit: CircuitName) -> tuple[Side, Side]:
    """L and R of every head of a layer, in float32; the circuit is L R^T."""
    scale = model.attention_scale(layer).float()[:, None]
    left, right = (model.W_Q, model.W_K) if circuit == "QK" else (model.W_V, model.W_O)
    if circuit == "QK":
        return scale * left[layer].float(), scale * right[layer].float()
    return scale * left[layer].float(), (right[layer].float() * model.attention_out_scale(layer).float()).mT


def singular(left: Side, right: Side) -> tuple[Side, Float[Tensor, "head d_head"], Side]:
    """U, S and V of L R^T = U diag(S) V^T, from the QR decompositions of both."""
    (q_left, r_left), (q_right, r_right) = torch.linalg.qr(left), torch.linalg.qr(right)
    u, s, vh = torch.linalg.svd(r_left @ r_right.mT)
    return q_left @ u, s, q_right @ vh.mT
