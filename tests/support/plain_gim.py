"""GIM written out for transformers' own models: no TransformerLens, and no gradient that is changed on its way.

Every change of the gradient is in the forward pass, as a part that is detached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, eager_mask
from transformers.modeling_utils import AttentionInterface

_PARTS = {
    "gpt2": ("transformer.h", "attn.c_proj"),
    "neox": ("gpt_neox.layers", "attention.dense"),
}
"""Where the blocks are, and the last projection of attention in them."""
_USUAL = ("model.layers", "self_attn.o_proj")


def half(value: Tensor) -> Tensor:
    """The value, with half of its gradient."""
    return value / 2 + (value / 2).detach()


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in transformers' form, q, k, v [row, head, pos, d_head]."""
    group = query.shape[1] // key.shape[1]
    key, value = (each.repeat_interleave(group, dim=1) for each in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = half(query) @ half(key).transpose(-2, -1) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + attention_mask
    usual, flat = torch.softmax(scores, dim=-1), 2 * torch.softmax(scores / 2, dim=-1)
    pattern = usual.detach() + flat - flat.detach()
    return (half(pattern) @ half(value)).transpose(1, 2).contiguous(), usual


def frozen_norm(norm: Any, x: Tensor) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().detach() * norm.weight + norm.bias
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    scale = 1 + norm.weight if type(norm).__name__.startswith("Gemma") else norm.weight
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt().detach() * scale


def halved_mlp(mlp: Any, x: Tensor) -> Tensor:
    return mlp.down_proj(half(mlp.act_fn(mlp.gate_proj(x))) * half(mlp.up_proj(x)))


class PlainGim:
    """A tiny model of transformers in float64, whose backward pass is GIM's."""

    def __init__(self, architecture: str, folder: Path) -> None:
        AttentionInterface.register("plain_gim", attention)
        AttentionMaskInterface.register("plain_gim", eager_mask)
        assert "plain_gim" in ALL_MASK_ATTENTION_FUNCTIONS
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="plain_gim"
        ).eval()
        blocks, self._out = _PARTS.get(architecture, _USUAL)
        self.blocks: Any = self.model.get_submodule(blocks)

    @contextmanager
    def _changed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self.model.modules():
                if "Norm" in type(module).__name__:
                    stack.enter_context(patch.object(module, "forward", partial(frozen_norm, module)))
                if hasattr(module, "gate_proj"):
                    stack.enter_context(patch.object(module, "forward", partial(halved_mlp, module)))
            yield

    def run(self, ids: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The last logits, and z [1, pos, heads x d_head] and the output of the MLP of each layer, with their graph."""
        seen: dict[str, list[Tensor]] = {"z": [], "mlp": []}

        def watch(value: Tensor, site: str) -> Tensor:
            seen[site].append(value if seen["z"] else value.detach().requires_grad_())
            return seen[site][-1]

        handles = []
        for block in self.blocks:
            out = block.get_submodule(self._out)
            handles.append(out.register_forward_pre_hook(lambda _, given: (watch(given[0], "z"), *given[1:])))
            handles.append(block.mlp.register_forward_hook(lambda *given: watch(given[-1], "mlp")))
        try:
            with self._changed(), torch.enable_grad():
                logits = self.model(input_ids=ids, use_cache=False).logits[0, -1]
        finally:
            for handle in handles:
                handle.remove()
        return logits, seen["z"], seen["mlp"]

    def attribution(self, base: Tensor, source: Tensor, answer: int, wrong: int) -> tuple[Tensor, Tensor]:
        """(source - base) . gradient for the z of each head [layer, head], and for each MLP [layer]."""
        logits, z, mlps = self.run(base)
        slopes = torch.autograd.grad(logits[answer] - logits[wrong], [*z, *mlps])
        _, new_z, new_mlps = self.run(source)
        heads = self.model.config.num_attention_heads
        products = [
            (new - old) * slope for new, old, slope in zip([*new_z, *new_mlps], [*z, *mlps], slopes, strict=True)
        ]
        layers = len(self.blocks)
        of_heads = torch.stack([each[0].unflatten(-1, (heads, -1)).sum((0, 2)) for each in products[:layers]])
        return of_heads.detach(), torch.stack([each.sum() for each in products[layers:]]).detach()
