"""Several devices on a machine that has none: tensors that say ``lazy:0`` or ``lazy:1`` and compute on the CPU.

As on CUDA, an operation raises if its tensors are on different devices, except for single numbers and indices on the
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME = "lazy"
"""A kind of device that torch knows but cannot compute on; its gradients are computed on the calling thread."""


BETWEEN_DEVICES = {"copy_", "_to_copy"}
INDEXED = {"index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"}


class MixedDevices(AssertionError):
    """An operation got tensors of several devices. Not a RuntimeError: the package tries other ways after some."""


class Simulated(Tensor):
    """A tensor on a simulated device; ``inner`` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device | None = None, requires_grad: bool = False) -> Simulated:
        if isinstance(inner, Simulated):  # accelerate copies a weight by calling its class
            return inner
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=device,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Simulated({self.inner!r}, {self.device})"

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        """Makes torch replace a weight that is converted, in place of writing into it."""
        return ["inner"], self.device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], device: torch.device, *_: Any) -> Simulated:
        return Simulated(inner["inner"], device)

    def tolist(self) -> list[Any]:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


class Simulation(TorchDispatchMode):
    """While it is entered, tensors are made and checked as on a machine with several devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    simulated = [tensor for tensor in tensors if isinstance(tensor, Simulated)]
    asked = kwargs.get("device")
    asked = None if asked is None else _numbered(torch.device(asked))
    if not simulated and (asked is None or asked.type != NAME):
        return func(*args, **kwargs)
    _check(func, name, args, tensors, simulated)
    device = asked or simulated[0].device
    if asked is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    if kwargs.get("pin_memory"):
        kwargs = kwargs | {"pin_memory": False}
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    with torch.no_grad():
        out = func(*inner_args, **inner_kwargs)
    if device.type != NAME:
        return args[0] if name == "copy_" else out
    out = tree_map(lambda leaf: Simulated(leaf, device) if isinstance(leaf, Tensor) else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if simulated and name != "_to_copy" else out


def _check(func: Any, name: str, args: Any, tensors: list[Tensor], simulated: list[Simulated]) -> None:
    if name in BETWEEN_DEVICES:
        return
    devices = {tensor.device for tensor in simulated}
    alone = [tensor for tensor in tensors if not isinstance(tensor, Simulated) and tensor.ndim]
    if name in INDEXED and isinstance(args[0], Simulated):
        indices = {id(index) for index in args[1]}
        alone = [tensor for tensor in alone if id(tensor) not in indices]
    devices |= {tensor.device for tensor in alone}
    if len(devices) > 1:
        raise MixedDevices(
            f"{func}: all tensors should be on the same device, but they are on {sorted(map(str, devices))}"
        )


def _numbered(device: torch.device) -> torch.device:
    return torch.device(NAME, 0) if device.type == NAME and device.index is None else device


def _inner(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Simulated) else leaf


@contextmanager
def simulation() -> Iterator[None]:
    """Simulated devices can be used in the ``with`` block."""
    kernels = torch.library.Library("aten", "IMPL")
    for name, make in {"empty.memory_format": torch.empty, "empty_strided": torch.empty_strided}.items():
        kernels.impl(name, partial(_new, make), "Lazy")
    kernels.impl("_copy_from", _copy, "Lazy")
    try:
        with Simulation():
            yield
    finally:
        kernels._destroy()


def _new(make: Callable[..., Tensor], *sizes: Any, dtype: Any = None, device: Any = None, **_: Any) -> Simulated:
    """The memory that ``torch.tensor`` asks for, without asking the mode."""
    return Simulated(make(*sizes, dtype=dtype), _numbered(torch.device(device)))


def _copy(source: Tensor, to: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(to).copy_(_inner(source))
    return to
