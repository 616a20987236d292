"""The QK and OV circuits of a head, as products of two thin matrices with the scales of the norms around them.

With row vectors, a head reads x through diag(s) W, with s the scale of the norm before attention. So its circuits are

    QK:  (s W_Q) (s W_K)^T      the score of a query x and a key y is x QK y^T / sqrt(d_head)
    OV:  (s W_V) (W_O t)        what attending to y writes is y OV

with t the scale of a norm after attention, ones if there is none. Both are d_model x d_model of rank d_head at most,
and are never computed as such. Biases and rotations by position are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from mechheads.heads import HeadLike, check_head
from mechheads.limits import current
from mechheads.messages.arguments import Within
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import token_strings
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores

CircuitName = Literal["QK", "OV"]
Side = Float[Tensor, "head d_model d_head"]


def sides(model: Model, layer: int, circuit: CircuitName) -> tuple[Side, Side]:
    """L and R of every head of a layer, in float32; the circuit is L R^T."""
    scale = model.attention_scale(layer).float()[:, None]
    left, right = (model.W_Q, model.W_K) if circuit == "QK" else (model.W_V, model.W_O)
    if circuit == "QK":
        return scale * left[layer].float(), scale * right[layer].float()
    return scale * left[layer].float(), (right[layer].float() * model.attention_out_scale(layer).float()).mT


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: LAPACK's matrices are so small that several wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def root(side: Side) -> Float[Tensor, "head k d_head"]:
    """R of the QR decomposition: R^T R is side^T side."""
    return torch.linalg.qr(side, mode="r").R


@one_thread()
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
    Within(1, model.d_head).check("n", n)
    Within(1, model.d_vocab).check("top", top)
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


_DRAWS = 16
"""Random heads of the same singular values, for each head."""
_TOKENS = 8192
"""How many tokens of the vocabulary are taken at a time."""


@analysis
@torch.no_grad()
def copying_scores(model: Model) -> HeadScores:
    """Whether a head raises the logits of the tokens that it attends to, by its weights alone.

    The map from tokens to logits, W_E OV W_U with the scale of the final norm, has as many eigenvalues other than 0 as
    a head has dimensions. W_E and W_U are taken without their means over tokens: what a head writes for every token
    alike copies nothing, and what it adds to every logit alike changes no probability. If the eigenvalues are
    positive, tokens raise themselves and what is like them; the score is

        sum of the eigenvalues / sum of their absolute values

    from -1 (suppresses what it attends to) over 0 to 1 (copies). They are those of the d_head x d_head matrix
    W_O (W_U W_E) W_V, so nothing of the size of the vocabulary is kept. The embeddings are what the first layer reads;
    for later heads the score says what they would do with it.

    The null is the score of heads that read and write random directions with the same singular values; each draw has
    the same directions for all layers. ``p_value`` is two-sided, from the t distribution of a new draw around the mean
    of 16 draws (``null``).

    Returns:
        Scores [layer, head], with ``null`` and ``null_std``.

    Raises:
        ValueError: if the weights give numbers that are not finite.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits), eigenvalues of copying.

    >>> found = mh.behaviour.copying_scores(model)
    >>> found["L29H2"]["score"] > 0.9  # it copies names
    True
    """
    met = _met(model)
    if not met.isfinite().all():
        raise ValueError(f"model: the embeddings of {model.name!r} have numbers that are not finite; load it again")
    draw = torch.Generator().manual_seed(current().seed)
    shape = model.n_layers, model.n_heads
    score, mean, std = (np.full(shape, np.nan) for _ in range(3))
    drawn = torch.stack([_random(model, draw).mT @ met @ _random(model, draw) for _ in range(_DRAWS)])
    for layer in Bar(range(model.n_layers), desc="copying", leave=False):
        reads, writes = sides(model, layer, "OV")
        score[layer] = _share(writes.mT @ met @ reads)
        shares = _share(drawn * singular(reads, writes)[1][:, None])
        mean[layer], std[layer] = np.mean(shares, axis=0), np.std(shares, axis=0, ddof=1)
    above = (score - mean) / (std * np.sqrt(1 + 1 / _DRAWS))
    dims = ("layer", "head")
    return HeadScores.from_scores(
        score,
        p_value=2 * student.sf(np.abs(above), _DRAWS - 1),
        name="copying by eigenvalues",
        kind="copying",
        provenance=make_provenance(model, draws=_DRAWS),
        variables={"null": (dims, mean), "null_std": (dims, std)},
    )


def _met(model: Model) -> Float[Tensor, "d_model d_model"]:
    """W_U W_E without the means over tokens, with the scale of the final norm; a part of the vocabulary at a time."""
    found = torch.zeros(model.d_model, model.d_model, device=model.device, dtype=torch.float64)
    of_U, of_E = (torch.zeros_like(found[0]) for _ in range(2))
    for start in range(0, model.d_vocab, _TOKENS):
        stop = min(start + _TOKENS, model.d_vocab)
        U, E = model.unembedding(start, stop), model.W_E[start:stop].float()
        found += U @ E
        of_U += U.sum(1)
        of_E += E.sum(0)
    found -= torch.outer(of_U, of_E) / model.d_vocab
    return model.final_scale().float()[:, None] * found.float()


@one_thread()
def _share(maps: Float[Tensor, "*batch head d_head d_head"]) -> Float[np.ndarray, "*batch head"]:
    eigenvalues = torch.linalg.eigvals(maps.cpu().double())
    return (eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)).numpy()


@one_thread()
def _random(model: Model, draw: torch.Generator) -> Side:
    """Random orthonormal directions in place of a side of the heads of a layer."""
    normal = torch.randn(model.n_heads, model.d_model, model.d_head, generator=draw)
    return torch.linalg.qr(normal.to(model.device))[0]
