"""Copying scores: whether a head raises the tokens that it attends to, by the eigenvalues of its OV circuit."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor

from mechheads.behaviour.circuits import Side, sides, singular
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores

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

    The null is the score of heads that read and write random directions with the same singular values. ``p_value`` is
    two-sided, from the t distribution of a new draw around the mean of 16 draws (``null``).

    Returns:
        Scores [layer, head], with ``null`` and ``null_std``.

    Raises:
        ValueError: if the weights give numbers that are not finite.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits), eigenvalues of copying.

    >>> found = mh.behaviour.copying_scores(model)
    >>> found["L29H2"]["score"] > 0.9  # it copies names
    True
    """
    seed = current().seed
    met = _met(model)
    if not met.isfinite().all():
        raise ValueError(f"model: the embeddings of {model.name!r} have numbers that are not finite; load it again")
    draw = torch.Generator().manual_seed(seed)
    shape = model.n_layers, model.n_heads
    score, mean, std = (np.full(shape, np.nan) for _ in range(3))
    for layer in Bar(range(model.n_layers), desc="copying", leave=False):
        reads, writes = sides(model, layer, "OV")
        score[layer] = _share(writes.mT @ met @ reads)
        size = singular(reads, writes)[1]
        drawn = [_share(_random(writes, draw).mT @ met @ (_random(reads, draw) * size[:, None])) for _ in range(_DRAWS)]
        mean[layer], std[layer] = np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1)
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


def _share(maps: Float[Tensor, "head d_head d_head"]) -> Float[np.ndarray, " head"]:
    eigenvalues = torch.linalg.eigvals(maps.double())
    return (eigenvalues.real.sum(-1) / eigenvalues.abs().sum(-1)).cpu().numpy()


def _random(side: Side, draw: torch.Generator) -> Side:
    """Random orthonormal directions in place of a side's own."""
    return torch.linalg.qr(torch.randn(side.shape, generator=draw).to(side.device))[0]
