"""The parts of a model: blocks, which run with cached keys and only as far as needed, and the devices that they are on.

If accelerate has spread the blocks over several devices, only the call of a block, and hooks in it, move tensors. All
that an analysis sees or keeps is on one device, ``home``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@runtime_checkable
class Keys(Protocol):
    """An object between a block's keys and values and its attention. It may record them, add to them, or stop there."""

    def update(
        self, k: Float[Tensor, "row kv pos d_head"], v: Float[Tensor, "row kv pos d_head"], layer: int, /, *_: Any
    ) -> tuple[Float[Tensor, "row kv key d_head"], Float[Tensor, "row kv key d_head"]]: ...


@runtime_checkable
class Blocks(Protocol):
    """The blocks of a model, prepared for rows at certain positions; their output is on the device of their input."""

    def __call__(
        self,
        layer: int,
        residual: Float[Tensor, "row pos d_model"],
        keys: Keys | None = None,
        mask: Float[Tensor, "row 1 pos key"] | None = None,
    ) -> Float[Tensor, "row pos d_model"]: ...


_NAMES_OF_KEYS = ("past_key_values", "cache", "layer_past", "past_key_value")
"""The names of cached keys in releases of transformers, and in code that comes with a model."""


def name_of_keys(forward: Callable[..., Any]) -> str:
    """The name by which a block, or its attention, takes cached keys; not one that a decorator still translates."""
    parameters = inspect.signature(forward).parameters
    typed = [name for name, parameter in parameters.items() if "Cache" in str(parameter.annotation)]
    return next((name for name in (*_NAMES_OF_KEYS, *typed) if name in parameters), _NAMES_OF_KEYS[0])


class Stopped(Exception):
    """Raised inside a block to stop it."""


class RecordedKeys:
    """Records keys and values at the first call, after the ``past``, and stops the block; later calls give them."""

    def __init__(self, past: Keys | None = None) -> None:
        self._past = past
        self._recorded: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        if self._recorded is None:
            self._recorded = (k, v) if self._past is None else self._past.update(k, v, layer)
            raise Stopped
        return self._recorded


def until_stopped(layer: int, run: Callable[[], Any]) -> None:
    """Call a block that is stopped from inside."""
    try:
        run()
    except Stopped:
        return
    raise RuntimeError(f"block {layer} ran to its end: its attention did not read the keys or z that should stop it")


def mask_of(seen: Bool[Tensor, "row 1 pos key"], dtype: torch.dtype) -> Float[Tensor, "row 1 pos key"]:
    """An attention mask, added to the scores, that lets each token see exactly these keys."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


@dataclass(frozen=True)
class Devices:
    """The devices of a model: ``home``, of the embedding and of all that analyses see, and the one of each block."""

    home: torch.device
    blocks: tuple[torch.device, ...]

    @property
    def each(self) -> tuple[torch.device, ...]:
        """Every device once, in the order in which a run comes to it."""
        return tuple(dict.fromkeys((self.home, *self.blocks)))

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.each) > 1

    @property
    def free(self) -> int | None:
        """The free memory of the CUDA device that has least; None without CUDA."""
        return min((torch.cuda.mem_get_info(at)[0] for at in self.each if at.type == "cuda"), default=None)


def devices_of(blocks: Iterable[nn.Module], embedding: Tensor) -> Devices:
    """The devices of a model; a block whose weights stay on disk runs on the device of the embedding."""
    first = (next(block.parameters(), embedding) for block in blocks)
    return Devices(embedding.device, tuple(embedding.device if at.is_meta else at.device for at in first))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device; CUDA copies pinned memory without waiting, which other devices would read too early."""
    if tensor.device == device:
        return tensor
    from_memory = tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor
    return from_memory.to(device, non_blocking=device.type not in ("cpu", "mps"))


@dataclass(frozen=True)
class HookAtHome:
    """Calls a hook function with the tensor at home, and puts what it returns back on the layer's device."""

    function: Callable[..., Any]
    home: torch.device

    def __call__(self, value: Tensor, hook: Any) -> Tensor | None:
        new = self.function(moved(value, self.home), hook=hook)
        return None if new is None else moved(new, value.device)


@dataclass(frozen=True)
class KeysAtHome:
    """Gives keys and values to another ``Keys`` at home, and what that returns back to the layer's device."""

    keys: Keys
    home: torch.device

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        new_k, new_v = self.keys.update(moved(k, self.home), moved(v, self.home), layer)
        return moved(new_k, k.device), moved(new_v, v.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.keys, name)


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Every module of a model once; a bridge has the transformers model outside its own submodules."""
    inner = getattr(module, "original_model", None)
    modules = [module, inner] if isinstance(inner, nn.Module) else [module]
    met = set(map(id, modules))
    for part in modules:
        for child in part._modules.values():
            if child is not None and id(child) not in met:
                met.add(id(child))
                modules.append(child)
    return modules


def adapters_and_weights(model: Any) -> tuple[list[Any], list[Any]]:
    """Which adapters of a model are on, and its weights, with their versions if adapters can be merged into them."""
    layers = [it for it in model.modules() if hasattr(it, "disable_adapters") and hasattr(it, "merged_adapters")]
    adapters = [(part.disable_adapters, [*part.active_adapters]) for part in layers]
    return adapters, [(id(weight), weight._version if layers else 0) for weight in model.parameters()]


def has_user_hooks(point: Any) -> bool:
    """Whether a hook point has hooks besides those by which TransformerLens 4 calls one hook point from another."""
    return any(
        not getattr(getattr(handle, "user_hook", None), "__qualname__", "").startswith("_wire_symbolic_hooks.")
        for handle in point.fwd_hooks
    )


def sections_of(configuration: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """A configuration and all parts of it that have names and values."""
    parts = [value for value in configuration.values() if isinstance(value, Mapping)]
    return [configuration, *(section for part in parts for section in sections_of(part))]


def rotations_of(configuration: Mapping[Any, Any]) -> list[Mapping[Any, Any]]:
    """The parts of a configuration that say how positions are rotated: one, or one for each kind of layer."""
    return [section for section in sections_of(configuration) if "rope_type" in section]


def trial_tokens(d_vocab: int, rows: int, pos: int, device: torch.device) -> Int[Tensor, "row pos"]:
    """Tokens from the middle of a vocabulary, as its first are often control tokens, with huge activations."""
    first = d_vocab // 2 + pos * torch.arange(rows, device=device)
    return (first[:, None] + torch.arange(pos, device=device)) % d_vocab


def logits_of(model: Any, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None) -> Tensor:
    """The logits of a model of transformers, at some positions only if it can compute them alone."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own_code = not type(inner).__module__.startswith("transformers.")
    with torch.no_grad():
        spread = hasattr(inner, "hf_device_map")  # an index would be on one of the devices
        if (
            at is not None
            and not own_code
            and not spread
            and "logits_to_keep" in inspect.signature(inner.forward).parameters
        ):
            places = torch.tensor([*at], device=ids.device)
            return model(input_ids=ids, use_cache=False, logits_to_keep=places).logits
        logits = model(input_ids=ids, use_cache=False).logits
    return logits if at is None else logits[:, [*at]]
