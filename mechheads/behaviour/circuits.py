"""The QK and OV circuits of a head, as products of two thin matrices with the scales of the norms around them.

With row vectors, a head reads x through diag(s) W, with s the scale of the norm before attention. So its circuits are

    QK:  (s W_Q) (s W_K)^T      the score of a query x and a key y is x QK y^T / sqrt(d_head)
    OV:  (s W_V) (W_O t)        what attending to y writes is y OV

with t the scale of a norm after attention, ones if there is none. Both are d_model x d_model of rank d_head at most,
and are never computed as such. Biases and rotations by position are left out.
"""

from __future__ import annotations

from typing import Literal

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadLike, check_head
from mechheads.messages.arguments import check_known
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings

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


@analysis
@torch.no_grad()
def head_directions(
    model: Model, head: HeadLike, circuit: CircuitName = "OV", *, n: int = 5, top: int = 6
) -> pd.DataFrame:
    """The strongest singular directions of a head's QK or OV circuit, with the tokens nearest to them.

    OV = U diag(S) V^T: along the i-th direction, the head reads u_i from a token that it attends to, and writes
    S_i v_i. The tokens read are those whose embeddings have the largest product with u_i; the tokens written are those
    whose logits v_i raises most, with the scale of the final norm. Of QK, u_i is read from the query and v_i from the
    key, both as embeddings.

    The sign of a direction is arbitrary, but the two sides belong together: what is read at the positive end is written
    at the positive end. An embedding is what the first layer reads; heads of later layers read what the layers before
    them wrote, which may look quite different (see ``mh.labels.salient_operations``). Biases and rotations by position
    are left out.

    Args:
        circuit: ``"OV"`` or ``"QK"``.
        n: the number of directions.
        top: the number of tokens at each end.

    Returns:
        One row per direction: ``singular`` value, its ``share`` of the sum of squares, and the tokens ``reads`` and
        ``writes`` (of QK ``query`` and ``key``) at the positive end, and the same with ``_negative`` at the other.

    Raises:
        ValueError: if there is no such head or circuit, or a number is out of range.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits); Millidge & Black 2022 (The Singular Value
    Decompositions of Transformer Weight Matrices are Highly Interpretable).

    >>> found = mh.behaviour.head_directions(model, "L23H4", n=3)
    >>> list(found)
    ['singular', 'share', 'reads', 'writes', 'reads_negative', 'writes_negative']
    """
    at = check_head(head, model.n_layers, model.n_heads)
    check_known("circuit", circuit, CircuitName)
    for name, number, most in (("n", n, model.d_head), ("top", top, model.d_vocab)):
        if not 1 <= number <= most:
            raise ValueError(f"{name} is {number}; it must lie between 1 and {most}")
    left, right = (side[at.head, None] for side in sides(model, at.layer, circuit))
    u, s, v = (each[0] for each in singular(left, right))
    read = model.W_E.float() @ u[:, :n]
    written = model.W_U.float().T @ (model.final_scale().float()[:, None] * v[:, :n])
    names = ("reads", "writes") if circuit == "OV" else ("query", "key")
    products = (read, written) if circuit == "OV" else (read, model.W_E.float() @ v[:, :n])
    columns: dict[str, list[object]] = {
        "singular": s[:n].tolist(),
        "share": (s[:n] ** 2 / (s**2).sum()).tolist(),
    }
    for ending, sign in (("", 1), ("_negative", -1)):
        for name, product in zip(names, products, strict=True):
            columns[f"{name}{ending}"] = _tokens(model, sign * product, top)
    return pd.DataFrame(columns)


def _tokens(model: Model, products: Float[Tensor, "token direction"], top: int) -> list[object]:
    known = products[: len(model.tokenizer)] if model.tokenizer is not None else products
    best = known.topk(min(top, len(known)), dim=0).indices.T
    return ["  ".join(map(repr, token_strings(ids, model.tokenizer))) for ids in best.tolist()]
