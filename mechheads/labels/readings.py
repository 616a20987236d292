"""The three ways in which a head may read a token (readings), and the values that it computes from each.

| reading | E'[s], the head's input for token s |
|---|---|
| ``embedding`` | row s of W_E |
| ``first_mlp`` | MLP_0(ln2_0(W_E[s])); in layer 0 the embedding. The paper's (MAPS, arXiv 2412.11965, section 3.1) |
| ``carried`` | the residual stream at the head's layer and the token, after the norm before attention |

For ``carried`` the model runs on the token after one neutral word, such as "The", which follows the
beginning-of-sequence token if the tokenizer adds one. The mean over several such openings is used, so that no single
one decides. The token alone, as the first of a prompt, would not do: models use the first position as an attention
sink.

The first two use raw weights, or with ``norm="folded"`` the scale of the norm before attention. The third has passed
through that norm. None of them includes the bias of W_V, which adds the same for every token.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.cached_runs import values_after
from mechheads.model.model import Model
from mechheads.prompts.encoding import begin_tokens, text_ids

Reading = Literal["embedding", "first_mlp", "carried"]
Source = Literal["all", "embedding", "first_mlp", "carried"]
Norm = Literal["raw", "folded"]

READINGS: tuple[Reading, ...] = ("embedding", "first_mlp", "carried")
OPENINGS = ("The", "and", "\n")


class Readings:
    """The values that every head computes from some tokens, for each way of reading them (``names``).
    ``missing``: with ``"all"``, the readings that this model does not have, and why."""

    def __init__(self, model: Model, ids: Int[Tensor, " source"], source: Source, norm: Norm) -> None:
        self._model, self._norm = model, norm
        self.missing: dict[Reading, str] = {}
        wanted = READINGS if source == "all" else (source,)
        embedded = model.embed(ids)
        self._embedded = _finite(embedded.float(), "W_E")
        if "first_mlp" in wanted:
            try:
                self._first_mlp = _finite(model.first_mlp(embedded).float(), "the first MLP")
            except ValueError as error:
                self._note("first_mlp", error, source)
        if "carried" in wanted:
            try:
                self._carried = carried_values(model, ids)
            except ValueError as error:
                self._note("carried", error, source)
        self.names: tuple[Reading, ...] = tuple(name for name in wanted if name not in self.missing)

    def _note(self, reading: Reading, error: ValueError, source: Source) -> None:
        if source != "all" or isinstance(error, DamagedError):
            raise error
        self.missing[reading] = str(error)

    def at(self, layer: int) -> dict[Reading, Float[Tensor, "head source d_head"]]:
        """E'[s] W_V for each head of a layer, for each reading of that layer."""
        model, values = self._model, dict[Reading, Tensor]()
        scale = model.attention_scale(layer).float() if self._norm == "folded" else 1.0
        W_V = model.W_V[layer].float()
        for name in self.names:
            if name == "carried":
                carried = self._carried[layer]
                values[name] = carried.repeat_interleave(model.n_heads // len(carried), dim=0)
            elif name == "embedding" or layer == 0:
                values.setdefault("embedding", self._embedded * scale @ W_V)
            else:
                values[name] = self._first_mlp * scale @ W_V
        return values


class DamagedError(ValueError):
    """Numbers are not finite; no other reading can be used instead."""


def carried_values(model: Model, ids: Int[Tensor, " source"]) -> list[Float[Tensor, "kv source d_head"]]:
    """ln1_l(residual stream) W_V of tokens after a neutral opening, for each layer, averaged over the openings."""
    openings = neutral_openings(model)
    total: list[Tensor] = []
    for opening in openings:
        read = values_after(model, opening, ids)
        total = read if not total else [before + more for before, more in zip(total, read, strict=True)]
    carried = []
    for layer, values in enumerate(total):
        each = (values / len(openings)).transpose(0, 1)
        bias = model.backend.bias("V", layer)
        if bias is not None:
            each = each - bias.float()[:: model.n_heads // len(each), None]
        carried.append(_finite(each, f"the model's run, in layer {layer},"))
    return carried


def neutral_openings(model: Model) -> list[list[int]]:
    """The tokens put before a token: the beginning-of-sequence token, if the tokenizer adds one, and a neutral word."""
    tokenizer = model.tokenizer
    begin = begin_tokens(tokenizer)
    words = [text_ids(text, tokenizer, special=False)[0] for text in OPENINGS]
    starts = [[*begin, *ids] for ids in words if ids and tokenizer.unk_token_id not in ids]
    openings = [list(ids) for ids in dict.fromkeys(map(tuple, starts))] or ([begin] if begin else [])
    if not openings:
        raise ValueError(
            f"the tokenizer has no tokens for any of the neutral openings {', '.join(map(repr, OPENINGS))}"
        )
    return openings


def _finite(tensor: Tensor, where: str) -> Tensor:
    if not torch.isfinite(tensor).all():
        raise DamagedError(f"{where} gives NaN or infinite numbers: the model's weights are damaged")
    return tensor
