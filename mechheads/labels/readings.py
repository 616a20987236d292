"""The three ways in which a head may read a token (readings), and the values that it computes from each.

``relation_scores`` describes them; ``first_mlp``, MLP_0(ln2_0(W_E[s])), is the paper's (MAPS, arXiv 2412.11965,
section 3.1). For ``carried`` the model runs on the token after a neutral word, because models use the first position as
an attention sink. No reading includes the bias of W_V, which adds the same for every token.
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
    """The values that every head computes from some tokens, for each reading (``names``).
    ``missing``: with ``"all"``, the readings that this model does not have, each with the reason."""

    def __init__(self, model: Model, ids: Int[Tensor, " source"], source: Source, norm: Norm) -> None:
        self._model, self._norm = model, norm
        self.missing: dict[str, str] = {}
        embedded = model.embed(ids)
        self._read = {"embedding": [_finite(embedded.float(), "W_E")]}
        readers = {
            "first_mlp": lambda: [model.first_mlp(embedded).float()],
            "carried": lambda: carried_values(model, ids),
        }
        for name in readers if source == "all" else readers.keys() & {source}:
            try:
                self._read[name] = readers[name]()
            except ValueError as error:
                if source != "all":
                    raise
                self.missing[name] = str(error)
            for layer, values in enumerate(self._read.get(name, ())):
                _finite(values, "the first MLP" if name == "first_mlp" else f"the model's run, in layer {layer},")
        self.names: tuple[Reading, ...] = tuple(
            name for name in READINGS if name in self._read and source in ("all", name)
        )

    def at(self, layer: int) -> dict[Reading, Float[Tensor, "head source d_head"]]:
        """E'[s] W_V for each head of a layer, for each reading of that layer."""
        model, values = self._model, dict[Reading, Tensor]()
        scale = model.attention_scale(layer).float() if self._norm == "folded" else 1.0
        W_V = model.W_V[layer].float()
        for name in self.names:
            if name == "carried":
                carried = self._read[name][layer]
                values[name] = carried.repeat_interleave(model.n_heads // len(carried), dim=0)
            else:
                name = "embedding" if layer == 0 else name
                values[name] = self._read[name][0] * scale @ W_V
        return values


def carried_values(model: Model, ids: Int[Tensor, " source"]) -> list[Float[Tensor, "kv source d_head"]]:
    """ln1_l(residual stream) W_V of tokens after a neutral opening, for each layer, averaged over the openings."""
    openings = neutral_openings(model)
    total: list[Tensor] = []
    for opening in openings:
        values = values_after(model, opening, ids)
        total = [before + more for before, more in zip(total, values, strict=True)] if total else values
    carried = []
    for layer, values in enumerate(total):
        each = (values / len(openings)).transpose(0, 1)
        bias = model.backend.bias("V", layer)
        if bias is not None:
            each = each - bias.float()[:: model.n_heads // len(each), None]
        carried.append(each)
    return carried


def neutral_openings(model: Model) -> list[list[int]]:
    """The tokens that may precede a token: the beginning-of-sequence token, if the tokenizer adds one, and a word."""
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
        raise ValueError(f"{where} gives NaN or infinite numbers: the model's weights are damaged")
    return tensor
