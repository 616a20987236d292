"""Salient operations: the tokens that a head amplifies most, and the tokens that it maps each of them to.

    sigma_t = |e_t W_V W_O| / |e_t|

with e_t as in ``relation_scores``: row t of W_E in layer 0, and in later layers the first MLP's output for it.
Elhelo & Geva 2025, "Inferring Functionality of Attention Heads from their Parameters", arXiv 2412.11965.
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadLike, check_head
from mechheads.labels.readings import Norm
from mechheads.limits import Limits, current
from mechheads.messages.arguments import Within
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings


@analysis
@torch.no_grad()
def salient_operations(
    model: Model,
    head: HeadLike,
    *,
    n: int = 15,
    top: int = 5,
    norm: Norm = "raw",
) -> pd.DataFrame:
    """The tokens of the whole vocabulary that a head amplifies most, from its weights alone.

    Args:
        model: from ``mh.load`` or ``mh.wrap``; with ``mh.load(max_memory=)``, weights stay on disk.
        head: such as ``"L23H4"``.
        n: the number of tokens to list.
        top: the number of tokens to list that each is mapped to.
        norm: ``"raw"`` as in the paper; ``"folded"`` multiplies the scale of the norm before attention into W_V,
            of a norm after attention into W_O and of the final norm into W_U.

    Returns:
        One row per token, indexed by its id, the most amplified first: ``token``, ``sigma``, ``maps_to`` (the ``top``
        largest entries in its row of E' W_V W_O W_U, the largest first) and ``suppresses`` (the smallest, the
        smallest first). Tokens are in quotes, so that spaces and control characters are visible.

    >>> table = salient_operations(model, "L23H4", n=2)
    >>> table["token"].tolist(), "' Italy'" in table["maps_to"].iloc[0]
    (["' Italian'", "' Pyth'"], True)
    """
    at = check_head(head, model.n_layers, model.n_heads)
    for name, number in {"n": n, "top": top}.items():
        Within(1, model.d_vocab).check(name, number)
    folded = norm == "folded"
    W_V, W_O = model.W_V[at.layer][at.head].float(), model.W_O[at.layer][at.head].float()
    if folded:
        W_V = model.attention_scale(at.layer).float()[:, None] * W_V
        W_O = W_O * model.attention_out_scale(at.layer).float()
    through_mlp = bool(at.layer)
    limits = current().limits
    each = torch.arange(model.d_vocab, device=W_V.device).split(limits.run_tokens)
    gains = [_gain(rows, rows @ W_V @ W_O) for rows in (_inputs(model, ids, through_mlp) for ids in each)]
    sigma, chosen = torch.cat(gains).topk(n)
    written = _inputs(model, chosen, through_mlp) @ W_V @ W_O
    entries = _entries(model, written * model.final_scale().float() if folded else written, limits)
    if not (sigma.isfinite().all() and entries.isfinite().all()):
        raise ValueError(f"the weights give numbers that are not finite for {at}: they are damaged")
    return pd.DataFrame(
        {
            "token": _shown(model, chosen),
            "sigma": sigma.tolist(),
            "maps_to": [_shown(model, ids) for ids in entries.topk(top).indices],
            "suppresses": [_shown(model, ids) for ids in entries.topk(top, largest=False).indices],
        },
        index=pd.Index(chosen.tolist(), name="id"),
    )


def _inputs(model: Model, ids: Tensor, through_mlp: bool) -> Float[Tensor, "token d_model"]:
    """The rows of E' of some tokens."""
    embedded = model.embed(ids)
    return (model.first_mlp(embedded) if through_mlp else embedded).float()


def _gain(rows: Float[Tensor, "token d_model"], written: Float[Tensor, "token d_model"]) -> Float[Tensor, " token"]:
    """sigma of each token; 0 if its row of E' is zero."""
    length = rows.norm(dim=1)
    return torch.where(length == 0, 0.0, written.norm(dim=1) / length)


def _entries(model: Model, written: Float[Tensor, "token d_model"], limits: Limits) -> Float[Tensor, "token d_vocab"]:
    """The rows of E' W_V W_O W_U, computed for a part of the vocabulary at a time."""
    step = max(1, limits.logits // model.d_model)
    starts = range(0, model.d_vocab, step)
    return torch.cat([written @ model.unembedding(start, min(start + step, model.d_vocab)) for start in starts], dim=1)


def _shown(model: Model, ids: Tensor) -> list[str]:
    return [repr(text) for text in token_strings(ids.tolist(), model.tokenizer)]
