"""What a head reads and writes most strongly: the singular directions of its QK and OV circuits, as tokens."""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.circuits import CircuitName, sides, singular
from mechheads.heads import HeadLike, check_head
from mechheads.messages.arguments import check_known
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings


@alone
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
