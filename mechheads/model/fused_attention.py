"""Attention without patterns, through torch's scaled dot product, for blocks in which no hook reads a pattern.

A fused kernel goes from q, k and v to z without a pattern. The steps before and after keep their hook points.
If the bridge wraps a projection each for q, k and v, transformers' own attention runs, with its fused kernel (``Own``).
If one projection gives all three, which the bridge splits, the bridge's method from q, k and v on is replaced
(``Split``). A causal mask spares the kernel half of the products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import (
    AttentionBridge,
    JointQKVAttentionBridge,
    JointQKVPositionEmbeddingsAttentionBridge,
    PositionEmbeddingsAttentionBridge,
)

from mechheads.model.changes import Forward, R

_NOT_FUSED = ("attn_logit_softcapping", "sinks")
"""What torch's scaled dot product does not compute: a soft cap of the scores, and a logit that belongs to no key."""
LONG = 256
"""The least tokens of a mask for which it is worth the time to check whether it is causal."""
_STEPS = ("use_split_qkv_input", "use_attn_in", "use_attn_result")
"""Settings of the bridge that add hook points inside attention."""
_KERNEL = "_attn_implementation_internal"
"""The attribute in which a configuration of transformers has the name of its kernel."""
_SPLIT = "_reconstruct_attention"
"""The bridge's method from split queries, keys and values to the output of attention."""
_OWN = "_attn"
"""The method from queries, keys and values to z in attention that has no fused kernel, as in GPT-Neo."""


class FusedAttention(ABC):
    """The attention of one block without its pattern; masks of ``long`` tokens and more are checked for causality."""

    def __init__(self, attention: Any, long: float) -> None:
        self.attention, self.long = attention, long
        self._own = attention.original_component
        self._points = [part for part in attention.children() if isinstance(part, HookPoint)]

    @property
    def serves(self) -> bool:
        """Whether no hook or setting needs a step that is not computed here."""
        return (
            not {"forward", _SPLIT} & self.attention.__dict__.keys()
            and "forward" not in vars(self._own)
            and not any(point.has_hooks() for point in self._points)
            and not any(getattr(self.attention.config, name, False) for name in _STEPS)
        )

    def change(self) -> Forward:
        """The change that makes the block compute its attention in this way."""
        return Forward(self.attention, self._forward)

    @abstractmethod
    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        """The bridge's attention, or its method after it has split q, k and v, without a pattern."""


class Own(FusedAttention):
    """transformers' own attention, with its fused kernel."""

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if mask is not None and is_causal(mask, self.long):
            kwargs["attention_mask"] = None
        own, config = _shallow(self._own), _shallow(self._own.config)  # layers and threads share the configuration
        vars(config)[_KERNEL], vars(own)["config"] = "sdpa", config
        return type(own).forward(own, *args, **kwargs)


class Split(FusedAttention):
    """The bridge's own attention after it has split one projection into q, k and v."""

    def change(self) -> Forward:
        return Forward(self.attention, self._forward, _SPLIT)

    def _forward(self, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> tuple[Tensor, None]:
        bridge, config = self.attention, self.attention.config
        heads = config.n_heads
        stored = getattr(config, "n_key_value_heads", None) or heads
        q, k, v, rows, queries, d_head = bridge._reshape_qkv_to_heads(q, k, v, heads, stored)
        scale = d_head**-0.5
        if isinstance(bridge, JointQKVPositionEmbeddingsAttentionBridge):
            rotations = kwargs.get("position_embeddings")
            if isinstance(rotations, tuple):
                q, k = bridge._apply_rotary_pos_emb(q, k, *bridge._apply_position_embedding_hooks(rotations))
        elif getattr(config, "scale_attn_by_inverse_layer_idx", False) and bridge._layer_idx is not None:
            scale /= bridge._layer_idx + 1
        k, v = bridge._update_kv_cache(k, v, **kwargs)
        mask, keys = kwargs.get("attention_mask"), k.shape[-2]
        if mask is None:
            mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        k, v = (each if stored == heads else each.repeat_interleave(heads // stored, dim=1) for each in (k, v))
        mask = mask[..., -queries:, :keys]
        how: dict[str, Any] = {"is_causal": True}
        if not is_causal(mask, self.long):
            how = {"attn_mask": mask if mask.dtype == torch.bool else mask.to(q.dtype)}
        z = scaled_dot_product_attention(q, k, v, scale=scale, **how)
        z = bridge._reshape_attn_output(z, rows, queries, heads, d_head)
        return bridge._apply_output_projection(z), None


def fused_attention(block: Any, long: float) -> FusedAttention | None:
    """The fused attention of a block; None if it would not compute the same, with the same hooks."""
    attention: Any = getattr(block, "attn", None)
    own: Any = getattr(attention, "original_component", None)
    if own is None or any(getattr(own, name, None) is not None for name in _NOT_FUSED):
        return None
    kind = type(attention)
    split = [getattr(cls, _SPLIT) for cls in (JointQKVAttentionBridge, JointQKVPositionEmbeddingsAttentionBridge)]
    if kind.forward is JointQKVAttentionBridge.forward and getattr(kind, _SPLIT) in split:
        return Split(attention, long)
    is_wrapped = isinstance(attention, PositionEmbeddingsAttentionBridge) or kind.forward is AttentionBridge.forward
    parts = getattr(attention, "submodules", {}).items()
    calls_the_same = all(getattr(own, str(part.name), None) is getattr(attention, name, None) for name, part in parts)
    return Own(attention, long) if is_wrapped and calls_the_same and not hasattr(own, _OWN) else None


def _shallow(thing: R) -> R:
    """A copy of an object that shares the values of its attributes, but can be given others."""
    other = object.__new__(type(thing))
    vars(other).update(vars(thing))
    return other


def is_causal(mask: Tensor, long: float = LONG) -> bool:
    """Whether a long mask has as many queries as keys, and lets each query see just the keys up to its own."""
    queries, keys = mask.shape[-2:]
    if queries < long or queries != keys:
        return False
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return bool(((mask if mask.dtype == torch.bool else mask == 0) == causal).all())
