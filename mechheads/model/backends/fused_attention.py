"""Attention without patterns, through torch's scaled dot product, for blocks in which no hook asks for a pattern.

The bridge computes attention step by step, with all scores and patterns in memory, so that each step has a hook point.
transformers' own attention calls the same projections, whose hook points are those of q, k, v and z, and leaves the
rest to a fused kernel that never holds a pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components.position_embeddings_attention import (
    PositionEmbeddingsAttentionBridge,
)

from mechheads.model.backends.temporary_changes import Changes, Forward, Setting

_NOT_FUSED = ("attn_logit_softcapping", "sinks")
"""What torch's scaled dot product does not compute: a soft cap of the scores, and a logit beside the keys."""
_LONG = 256
"""From so many tokens on, it is worth the time to look whether a mask is causal."""
_STEPS = ("use_split_qkv_input", "use_attn_in", "use_attn_result")
"""Settings of the bridge that ask for more hook points inside attention."""


class FusedAttention:
    """The attention of one block without its pattern.

    Attributes:
        attention: the bridge's attention.
    """

    def __init__(self, attention: Any, changes: Changes) -> None:
        self.attention, self._changes = attention, changes
        self._own = attention.original_component
        self._points = [part for part in attention.children() if isinstance(part, HookPoint)]

    @classmethod
    def of(cls, block: Any, changes: Changes) -> FusedAttention | None:
        """The attention of a block; None if transformers' own would not compute the same, with the same hooks."""
        attention: Any = getattr(block, "attn", None)
        if getattr(type(attention), "forward", None) is not PositionEmbeddingsAttentionBridge.forward:
            return None
        own: Any = attention.original_component
        calls_the_same = all(
            getattr(own, part.name, None) is getattr(attention, name) for name, part in attention.submodules.items()
        )
        plain = all(getattr(own, name, None) is None for name in _NOT_FUSED)
        return cls(attention, changes) if calls_the_same and plain else None

    @property
    def serves(self) -> bool:
        """Whether nothing asks for a step that is not computed here."""
        return (
            "forward" not in self.attention.__dict__
            and not any(point.has_hooks() for point in self._points)
            and not any(getattr(self.attention.config, name, False) for name in _STEPS)
        )

    def change(self) -> Forward:
        """The change that lets the block compute its attention so."""
        return Forward(self.attention, self._forward)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        mask = kwargs.get("attention_mask")
        if mask is not None and is_causal(mask):
            kwargs["attention_mask"] = None
        fused = Setting(self._own.config, "_attn_implementation", "sdpa")
        return self._changes.during([fused], lambda: self._own.forward(*args, **kwargs))


def is_causal(mask: Tensor) -> bool:
    """Whether a long mask lets each query see just the keys up to its own: then half of the products are spared."""
    queries, keys = mask.shape[-2:]
    if queries != keys or queries < _LONG:
        return False
    causal = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return bool(((mask if mask.dtype == torch.bool else mask == 0) == causal).all())


def fused_attentions(
    blocks: Iterable[Any], changes: Changes, run: Callable[[Sequence[FusedAttention | None]], Tensor], tolerance: float
) -> list[FusedAttention | None]:
    """The fused attention of each block, after a trial run that shows that it computes the same.

    Args:
        run: runs the model with some attentions fused, and gives its final states.
        tolerance: how far the final states may differ, in their standard deviations.
    """
    found = [FusedAttention.of(block, changes) for block in blocks]
    none: list[FusedAttention | None] = [None] * len(found)
    if not any(found):
        return none
    step_by_step = run(none).float()
    try:
        fused = run(found).float()
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError):
        return none
    off = (fused - step_by_step).abs().max() / step_by_step.std()
    return found if bool(off < tolerance) else none
