"""The layers of a Llama model from the lowest taught head on, with the change of each taught head apart.

Training runs these layers alone: the residual stream below them never changes and is kept. The first tokens, which all
prompts of a frame share, are run once for all rows of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from mechheads.heads import HeadId
from mechheads.model.deltas import Delta

Way = Literal["silent", "even", "untaught"]
"""How a head is taken away: it writes nothing, attends evenly, or is as it was before training."""
Off = Collection[tuple[Way, HeadId]]
Residual = Float[Tensor, "row pos d_model"]
_LONGEST = 512


@dataclass(frozen=True, eq=False)
class UpperLayers:
    """A transformers model of the Llama family, run from any layer on, with changes of some heads.

    Attributes:
        model: the model; its weights stay as they are.
        change: for each taught head, the changes of W_Q [d_head, d_model] and W_O [d_model, d_head].
        cos, sin: the rotary embedding of each position.
    """

    model: Any
    change: Mapping[HeadId, tuple[Tensor, Tensor]]
    cos: Float[Tensor, "pos d_head"]
    sin: Float[Tensor, "pos d_head"]

    @classmethod
    def of(cls, model: Any, heads: Sequence[HeadId], start: Delta | None = None) -> UpperLayers:
        """The model with a change of each head, zero if there is none to start from, ready to be trained."""
        model.requires_grad_(False)
        config = model.config
        shape = config.head_dim, config.hidden_size
        change = {head: (torch.zeros(shape), torch.zeros(shape[::-1])) for head in heads}
        for head, both in (start.weights if start else {}).items():
            for weight, side in zip(change[head], ("W_Q", "W_O"), strict=True):
                weight.copy_(both[side].T)
        for weight in (weight for both in change.values() for weight in both):
            weight.requires_grad_(True)
        cos, sin = model.model.rotary_emb(model.lm_head.weight[:1, None], torch.arange(_LONGEST)[None])
        return cls(model, change, cos[0], sin[0])

    def embed(self, ids: Int[Tensor, "row pos"]) -> Residual:
        """The residual stream before the first layer."""
        return self.model.model.embed_tokens(ids)

    def run(
        self, shared: Residual, rows: Residual, layers: range, *, changed: bool = False, off: Off = ()
    ) -> tuple[Residual, Residual]:
        """The residual stream after some layers.

        Args:
            shared: the residual stream of the shared first tokens, of a single row, before these layers.
            rows: that of the other tokens; a row that is shorter than others is padded at its end.
            changed: with the changes of the taught heads.
            off: heads that are taken away.
        """
        start, length = shared.shape[1], rows.shape[1]
        sees = torch.ones(start + length, start + length, dtype=torch.bool).tril()
        for layer in layers:
            first = self._read(layer, shared, 0, changed, off)
            other = self._read(layer, rows, start, changed, off)
            q, *own = other
            k, v = (torch.cat([a.expand(len(q), -1, -1, -1), b], 2) for a, b in zip(first[1:], own, strict=True))
            shared = self._write(layer, shared, _attend(*first, sees[:start, :start]), changed, off)
            rows = self._write(layer, rows, _attend(q, k, v, sees[start:]), changed, off)
        return shared, rows

    def log_probs(self, final: Float[Tensor, "token d_model"]) -> Float[Tensor, "token vocabulary"]:
        """The log-probabilities of the next token."""
        return self.model.lm_head(self.model.model.norm(final)).float().log_softmax(-1)

    def _read(
        self, layer: int, x: Residual, start: int, changed: bool, off: Off
    ) -> tuple[Float[Tensor, "row head pos d_head"], ...]:
        """Queries, keys and values of a layer."""
        block = self.model.model.layers[layer]
        at, size = block.self_attn, self.model.config.head_dim
        x = rms_norm(x, x.shape[-1:], block.input_layernorm.weight, self.model.config.rms_norm_eps)
        queries = list(at.q_proj(x).split(size, -1))
        if changed:
            for head in self._taught(layer, off):
                queries[head.head] = queries[head.head] + linear(x, self.change[head][0].to(x.dtype))
        for way, head in off:
            if way == "even" and head.layer == layer:
                queries[head.head] = torch.zeros_like(queries[head.head])
        q, k, v = (
            part.unflatten(-1, (-1, size)).transpose(1, 2)
            for part in (torch.cat(queries, -1), at.k_proj(x), at.v_proj(x))
        )
        return self._rotate(q, start), self._rotate(k, start), v

    def _rotate(self, x: Tensor, start: int) -> Tensor:
        at = slice(start, start + x.shape[2])
        one, other = x.chunk(2, -1)
        return x * self.cos[at] + torch.cat([-other, one], -1) * self.sin[at]

    def _write(
        self, layer: int, x: Residual, z: Float[Tensor, "row head pos d_head"], changed: bool, off: Off
    ) -> Residual:
        """The residual stream after a layer, from the outputs of its heads before W_O."""
        block = self.model.model.layers[layer]
        parts = list(z.unbind(1))
        for way, head in off:
            if way == "silent" and head.layer == layer:
                parts[head.head] = torch.zeros_like(parts[head.head])
        x = x + block.self_attn.o_proj(torch.cat(parts, -1))
        if changed:
            for head in self._taught(layer, off):
                x = x + linear(parts[head.head], self.change[head][1].to(x.dtype))
        y = rms_norm(x, x.shape[-1:], block.post_attention_layernorm.weight, self.model.config.rms_norm_eps)
        return x + block.mlp.down_proj(silu(block.mlp.gate_proj(y)) * block.mlp.up_proj(y))

    def _taught(self, layer: int, off: Off) -> list[HeadId]:
        return [head for head in self.change if head.layer == layer and ("untaught", head) not in off]


def _attend(q: Tensor, k: Tensor, v: Tensor, sees: Bool[Tensor, "query key"]) -> Tensor:
    """Attention in float32, which is faster here than in bfloat16."""
    shared = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(shared, 1) for x in (k, v))
    return scaled_dot_product_attention(q.float(), k, v, attn_mask=sees).to(q.dtype)
