"""Q-, K- and V-composition of all pairs of heads, from weights, against random matrices of the same spectra."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import gamma
from torch import Tensor

from mechheads.behaviour.circuits import Side, root, sides
from mechheads.heads import HeadId
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores

Way = Literal["Q", "K", "V"]
_KEPT = 2**27
"""Bytes that the senders' matrices may take; if there are more, receivers are read once for each part of them."""


@analysis
@torch.no_grad()
def composition_scores(model: Model, way: Way = "K") -> HeadScores:
    """How strongly the output of every head meets what every later head reads, by weights alone.

    With the OV circuit of a head, M = W_V W_O, and what a later head reads, N = W_QK for its queries (Q), W_QK^T for
    its keys (K) or W_OV for its values (V), as row vectors,

        score = norm(M N) / (norm(M) norm(N))        with Frobenius norms

    It is large if M writes mostly into directions that N amplifies. Two matrices that have nothing to do with each
    other have a score too: if one of them is turned at random, the square of the score is 1 / d_model on average. Its
    variance follows from the singular values of both and the fourth moments of a random rotation; ``p_value`` is the
    share of rotations with a larger score, by a gamma distribution of this mean and variance.

    The scales of the norms before and after attention are part of the circuits; biases, rotations by position, and the
    layers between the two heads are not. TransformerLens' ``all_composition_scores`` leaves these scales out, and gives
    the same scores where they are 1. This function takes d_head x d_head products only, one pair of layers at a time.

    Args:
        way: what of the later head reads: ``"Q"``, ``"K"`` or ``"V"``.

    Returns:
        Scores [layer, head, receiver] of the heads that write; NaN for receivers that do not come later. ``expected``
        is the root of the mean square under random rotations; ``z`` how many of its standard deviations the square of
        the score lies above the mean.

    Raises:
        ValueError: if ``way`` is not valid, or the weights give numbers that are not finite.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits), composition of attention heads.

    >>> found = mh.behaviour.composition_scores(model, "K")
    >>> found["L16H0"].nlargest(3, "score")["receiver"].tolist()[0] in ("L17H3", "L17H4", "L17H5", "L18H6", "L18H7")
    True
    """
    d, layers, heads = model.d_model, model.n_layers, model.n_heads
    score = np.full((layers, heads, layers * heads), np.nan)
    spread = np.full((layers, heads, layers * heads), np.nan)
    at_once = max(1, _KEPT // (4 * heads * d * model.d_head))
    blocks = [range(start, min(start + at_once, layers - 1)) for start in range(0, layers - 1, at_once)]
    steps = [(senders, receiver) for senders in blocks for receiver in range(senders.start + 1, layers)]
    writing: dict[int, _Thin] = {}
    for senders, receiver in Bar(steps, desc=f"{way}-composition", leave=False):
        own = slice(receiver * heads, (receiver + 1) * heads)
        left, right = sides(model, receiver, "OV" if way == "V" else "QK")
        reading = _Thin(*((right, left) if way == "K" else (left, right)))
        if receiver == senders.start + 1:
            writing = {sender: _written(model, sender) for sender in senders}
        for sender in range(senders.start, min(senders.stop, receiver)):
            wrote = writing[sender]
            met = torch.einsum("sdi,rdj->srij", wrote.side, reading.side).square().sum((-1, -2))
            score[sender, :, own] = (met / (wrote.size[:, None] * reading.size)).double().cpu().numpy()
            spread[sender, :, own] = _variance(wrote.fourth[:, None], reading.fourth, d).cpu().numpy()
    if not np.isfinite(score[0, :, heads:]).all():
        raise ValueError(f"model: the weights of {model.name!r} give numbers that are not finite; load it again")
    shape = 1 / (d**2 * spread)  # of a gamma distribution with mean 1 / d
    names = [str(HeadId(layer, head)) for layer in range(layers) for head in range(heads)]
    dims = ("layer", "head", "receiver")
    return HeadScores.from_scores(
        np.sqrt(score),
        p_value=gamma.sf(score, shape, scale=d * spread),
        name=f"{way}-composition",
        kind="composition",
        extra={"receiver": names},
        provenance=make_provenance(model, way=way),
        variables={
            "expected": (dims, np.where(np.isnan(score), np.nan, d**-0.5)),
            "z": (dims, (score - 1 / d) / np.sqrt(spread)),
        },
    )


def _written(model: Model, layer: int) -> _Thin:
    """What stands for W_V W_O of the heads of a layer."""
    W_V, W_O = sides(model, layer, "OV")
    return _Thin(W_O, W_V)


class _Thin:
    """Matrices of heads, as far as the norms of their products go.

    Attributes:
        side: B such that far near^T X and B^T X have the same norm for every X: near times the root of far^T far.
        size: the square of the Frobenius norm.
        fourth: the sum of squares of the squared singular values, which are taken to sum to 1.
    """

    def __init__(self, near: Side, far: Side) -> None:
        self.side = near @ root(far).mT
        self.size: Float[Tensor, " head"] = self.side.square().sum((-1, -2))
        squares = (self.side.mT @ self.side).square().sum((-1, -2))
        self.fourth: Float[Tensor, " head"] = (squares / self.size**2).double()


def _variance(a: Tensor, b: Tensor, d: int) -> Tensor:
    """The variance of the squared norm of M Q N over random rotations Q.

    M and N have norm 1; a and b are their ``_Thin.fourth``.
    """
    same = 3 * a * b + a * (1 - b) + (1 - a) * b
    apart = (1 - a) * (1 - b) * (d + 1) / (d - 1)
    return (same + apart) / (d * (d + 2)) - 1 / d**2
