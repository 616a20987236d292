"""The devices of one model: where its blocks run, where its embedding is, and where its logits are computed.

Blocks, their weights and what a cached run keeps of them stay on the block's device. Everything that an analysis or a
user's hook sees is on one device, ``home``. So only three places move tensors: the call of a block, hooks, and the
stores of cached runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


@dataclass(frozen=True)
class Devices:
    """Where the parts of a model are.

    Attributes:
        home: the device of the embedding, of token ids, and of everything that an analysis sees.
        blocks: the device of each block.
        end: the device of the unembedding, where the metric of a sweep is computed.
    """

    home: torch.device
    blocks: tuple[torch.device, ...]
    end: torch.device

    @cached_property
    def each(self) -> tuple[torch.device, ...]:
        """Every device once, in the order in which a run comes to it."""
        return tuple(dict.fromkeys((self.home, *self.blocks, self.end)))

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.each) > 1

    @property
    def free(self) -> int | None:
        """The free memory of the CUDA device that has least; None without CUDA."""
        each = [size for device in self.each if (size := free_bytes(device)) is not None]
        return min(each, default=None)


def devices_of(blocks: Iterable[nn.Module], embedding: Tensor, unembedding: Tensor) -> Devices:
    """Where the parts of a model are; a block whose weights stay on disk runs where the embedding is."""
    first = (next(block.parameters(), embedding) for block in blocks)
    at = tuple(embedding.device if weight.is_meta else weight.device for weight in first)
    return Devices(embedding.device, at, unembedding.device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, without waiting for any device; the same tensor if it is there already.

    From the CPU a CUDA device copies pinned memory. Between two CUDA devices torch's own copy would wait until both
    have done all that was launched on them, so it goes to a stream of its own on the device that receives it. Copies to
    the CPU are waited for, and those to an Apple GPU, which would read memory that is free by then.
    """
    if tensor.device == device:
        return tensor
    if device.type != "cuda" or not tensor.is_cuda:
        from_memory = tensor.pin_memory() if device.type == "cuda" else tensor
        return from_memory.to(device, non_blocking=device.type not in ("cpu", "mps"))
    with torch.cuda.stream(_copies_to(device)):
        there = tensor.to(device, non_blocking=True)
    computing = torch.cuda.current_stream(device)
    computing.wait_stream(_copies_to(device))
    there.record_stream(computing)
    return there


@cache
def _copies_to(device: torch.device) -> Any:
    """The CUDA stream on which a device receives tensors from other devices."""
    return torch.cuda.Stream(device)


def free_bytes(device: torch.device) -> int | None:
    """The free memory of a CUDA device; None for other devices."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


@dataclass(frozen=True)
class There:
    """A hook function that gets the tensors of each layer on the layer's device; any other gets them at home."""

    function: Callable[..., Any]

    def __call__(self, value: Tensor, hook: Any) -> Any:
        return self.function(value, hook=hook)


@dataclass(frozen=True)
class AtHome:
    """Calls a hook function with the tensor at home, and puts what it returns back on the layer's device."""

    function: Callable[..., Any]
    home: torch.device

    def __call__(self, value: Tensor, hook: Any) -> Tensor | None:
        new = self.function(moved(value, self.home), hook=hook)
        return None if new is None else moved(new, value.device)


class Bring:
    """A torch hook before a part of a model: moves the part's inputs to its device.

    Blocks on the same device share one. What they get besides the residual stream is the same for many of them, so it
    is moved once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        before, self._last = self._last, {}

        def bring(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or leaf.device == self._device:
                return leaf
            known = before.get(id(leaf))
            there = moved(leaf, self._device) if known is None or known[0] is not leaf else known[1]
            self._last[id(leaf)] = leaf, there
            return there

        others = tree_map(bring, (args[1:], kwargs))
        first = tuple(moved(arg, self._device) if isinstance(arg, Tensor) else arg for arg in args[:1])
        return (*first, *others[0]), others[1]


def bring_inputs(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Make each block of a model, and each part beside the blocks, move its inputs to the device of its weights."""
    brings: dict[torch.device, Bring] = {}
    for part in (*blocks, *_beside(model, set(blocks))):
        if (weight := next(part.parameters(), None)) is not None:
            bring = brings.setdefault(weight.device, Bring(weight.device))
            part.register_forward_pre_hook(bring, with_kwargs=True)


def _beside(module: nn.Module, blocks: set[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        if not blocks.intersection(child.modules()):
            yield child
        elif child not in blocks:
            yield from _beside(child, blocks)
