"""How much memory a computation takes, counted tensor by tensor, and how many operations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from mechheads.limits import Limits
from mechheads.model.core import ModelCore
from mechheads.runs.head_cache import token_bytes

UNSEEN = 40 * 2**20
"""Memory on a CPU that ``Cost`` does not count: buffers of matrix products, statistics, allocator overhead.

Statistics of any number of prompts take less than this, and no wave runs while they are computed.
"""

_BLOCK = 31 * 2**20


def keep_freed_memory() -> None:
    """Make a CPU's allocator keep freed memory, instead of returning it to the system and requesting it again.
    On Linux, it keeps up to twice the largest block that it has seen freed, which counts up to 32 MB."""
    torch.empty(_BLOCK, dtype=torch.uint8)


class Cost(TorchDispatchMode):
    """The cost of a ``with`` block: the largest sum of bytes of all tensors made in it, without what an operation uses
    internally (``peak``), and the floating-point operations of products (``flops``)."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = self.flops = 0
        self._alive: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count(*args, **(kwargs or {}), out_val=out)
        inputs = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in inputs and id(storage) not in self._alive:
                    self._now += storage.nbytes()
                    self.peak = max(self.peak, self._now)
                    self._alive[id(storage)] = weakref.finalize(storage, self._drop, id(storage), storage.nbytes())
        return out

    def _drop(self, key: int, size: int) -> None:
        self._now -= size
        self._alive.pop(key, None)


T = TypeVar("T")
_FAST_ON_A_CPU = 1536
"""Tokens that go through a block together: fewer make its matrix products slow, more only take memory."""


def tokens_in_flight(model: ModelCore, room: int, pos: int, limits: Limits) -> int:
    """How many tokens to compute at once: as many as the device needs to be fast, if the memory allows it.
    If weights are on disk, as many as fit: each wave reads the weights once."""
    wanted = limits.tokens or _FAST_ON_A_CPU
    if limits.tokens is None and model.backend.on_disk is not None:
        wanted = room // token_bytes(model, pos)
    elif limits.tokens is None and (free := model.backend.devices.free) is not None:
        wanted = free // (2 * token_bytes(model, pos))
    return max(1, min(wanted, room // token_bytes(model, pos)))


class Chunks:
    """Runs items together. If memory runs out, they run in halves, and never again in more than fit (``most``)."""

    def __init__(self) -> None:
        self.most: int | None = None

    def run(self, run: Callable[[Sequence[T]], list[Tensor]], items: Sequence[T]) -> list[Tensor]:
        """``run(items)``, each tensor joined along the first dimension if the items run in parts."""
        size = self.most or len(items)
        if len(items) > size:
            parts = [self.run(run, items[start : start + size]) for start in range(0, len(items), size)]
            return [torch.cat(each) for each in zip(*parts, strict=True)]
        try:
            return run(items)
        except (MemoryError, RuntimeError) as error:
            if len(items) == 1 or not is_out_of_memory(error):
                raise
        self.most = len(items) // 2
        return self.run(run, items)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch reports it as a plain RuntimeError on some devices."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "memory" in str(error)
    )


def rows_together(model: ModelCore, shape: tuple[int, int, int], row_bytes: float, room: int, limits: Limits) -> int:
    """How many prompts run together, at least one, if each takes ``row_bytes`` with its logits.
    ``shape``: the numbers of prompts, of positions, and of positions that the metric reads."""
    prompts, pos, n_read = shape
    fast = tokens_in_flight(model, room, pos, limits) // pos
    return max(1, min(prompts, fast, limits.logits_at_once // (n_read * model.d_vocab), int(room // row_bytes)))


def logit_bytes(rows: int, read: int, limits: Limits) -> int:
    """Memory for ``read`` logits or other numbers a row, and for what a metric computes from them, in bytes."""
    return 3 * 4 * min(max(limits.logits_at_once, read), rows * read)
