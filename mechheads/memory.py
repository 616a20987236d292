"""How much memory a piece of work takes, counted tensor by tensor."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

UNSEEN = 40 * 2**20
"""What libraries take besides on a CPU: room for matrix products, statistics, what the allocator cannot give back."""

_KEPT = 31 * 2**20


def keep_freed_memory() -> None:
    """Let a CPU's allocator keep memory that work frees, instead of giving it back and fetching it anew each time.

    The allocator of Linux keeps free up to twice the largest block, of at most 32 MB, that it has seen freed. Left
    alone it has seen none of this size, and every block of a model fetches its activations' pages from the system.
    """
    torch.empty(_KEPT, dtype=torch.uint8)


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of all tensors made in a ``with`` block, on any device; ``peak`` is the most at one time.

    What an operation takes while it runs, and does not give out, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._alive: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in given and id(storage) not in self._alive:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        self._now += storage.nbytes()
        self.peak = max(self.peak, self._now)
        self._alive[id(storage)] = weakref.finalize(storage, self._drop, id(storage), storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._now -= size
        self._alive.pop(key, None)
