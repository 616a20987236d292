"""Where the weights of a model go: to the devices that accelerate finds, or in part to disk.

accelerate's own hooks read the weights of a layer whenever its ``forward`` is called, and forget them at once. The
engine calls a block several times before the next one, and analyses also read W_O. So these hooks are removed, and
here the weights of a block are read when the block is first called, and stay until another block is.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from accelerate.hooks import AlignDevicesHook, remove_hook_from_module
from torch import Tensor, nn

from mechheads.limits import show_bytes
from mechheads.model.sources import ModelSourceError


@dataclass(frozen=True, eq=False)
class _Slot:
    """The place of a weight in a module, and the files that it is read from."""

    owner: nn.Module
    name: str
    empty: nn.Parameter
    files: Mapping[str, Tensor]

    def read(self) -> Tensor:
        """The weight, in memory of its own: pages of a mapped file would be read piece by piece in each product."""
        weight = self.files[self.name]
        if weight.shape != self.empty.shape:
            raise ValueError(
                f"the stored {self.name} of a {type(self.owner).__name__} has shape {list(weight.shape)}, but "
                f"config.json implies {list(self.empty.shape)}"
            )
        return weight.clone() if weight.device.type == "cpu" else weight

    def fill(self) -> None:
        self.owner._parameters[self.name] = nn.Parameter(self.read(), requires_grad=False)

    def clear(self) -> None:
        self.owner._parameters[self.name] = self.empty

    @property
    def bytes(self) -> int:
        return self.empty.numel() * self.empty.itemsize


class WeightsOnDisk:
    """The weights of some blocks, on disk except for the block that ran last; how much was read, and in what time."""

    def __init__(self, blocks: Mapping[int, nn.Module]) -> None:
        self._slots = {layer: list(_slots(block)) for layer, block in blocks.items()}
        self.layer_bytes = {layer: sum(slot.bytes for slot in slots) for layer, slots in self._slots.items()}
        self.bytes_read, self.seconds = 0, 0.0
        self._layer_in_memory: int | None = None
        self._filled: list[_Slot] = []
        for layer, block in blocks.items():
            block.register_forward_pre_hook(partial(self._load, layer))

    def _load(self, layer: int, block: nn.Module, inputs: Any) -> None:
        """A torch hook before a block: drop the weights of the last block, and read its own."""
        if self._layer_in_memory == layer:
            return
        self.drop()
        self._fill(self._slots[layer], self._filled)
        self._layer_in_memory = layer

    def drop(self) -> None:
        """Keep no weights of these layers in memory."""
        self._layer_in_memory = None
        _clear(self._filled)

    @contextlib.contextmanager
    def present(self, layer: int, part: nn.Module) -> Iterator[None]:
        """In the ``with`` block, the weights of a part of a layer are in memory."""
        inside = set(part.modules())
        missing = [
            slot
            for slot in self._slots.get(layer, ())
            if slot.owner in inside and slot.owner._parameters[slot.name] is slot.empty
        ]
        filled: list[_Slot] = []
        try:
            self._fill(missing, filled)
            yield
        finally:
            _clear(filled)

    def read(self, weight: Tensor) -> Tensor:
        """A weight that is on disk; any other one is returned as it is."""
        matches = (slot for slots in self._slots.values() for slot in slots if slot.empty is weight)
        slot = next(matches, None)
        return weight if slot is None else slot.read()

    def check(self, module: nn.Module) -> None:
        """Check that TransformerLens uses these weights themselves, and has made no others from them."""
        known = {id(slot.empty) for slots in self._slots.values() for slot in slots}
        for name, weight in module.named_parameters():
            if weight.is_meta and id(weight) not in known:
                raise ValueError(
                    f"max_memory: TransformerLens makes {name} from other weights of this architecture when it loads "
                    "them, so they cannot stay on disk; leave max_memory out"
                )

    def _fill(self, slots: list[_Slot], filled: list[_Slot]) -> None:
        start = time.perf_counter()
        for slot in slots:
            filled.append(slot)
            slot.fill()
            self.bytes_read += slot.bytes
        self.seconds += time.perf_counter() - start


def in_memory(
    on_disk: WeightsOnDisk | None, layer: int | None, part: nn.Module
) -> contextlib.AbstractContextManager[None]:
    """While the ``with`` block runs, the weights of a part of a layer are in memory; ``layer``: None for the others."""
    return contextlib.nullcontext() if on_disk is None or layer is None else on_disk.present(layer, part)


def _clear(filled: list[_Slot]) -> None:
    while filled:
        filled[-1].clear()
        filled.pop()


def _slots(block: nn.Module) -> Iterator[_Slot]:
    for module in block.modules():
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_meta:
                weight.requires_grad_(False)
                yield _Slot(module, name, weight, _files(module))


def _files(module: nn.Module) -> Mapping[str, Tensor]:
    hook: Any = getattr(module, "_hf_hook", None)
    if not isinstance(hook, AlignDevicesHook) or hook.weights_map is None:
        raise ValueError(
            f"accelerate does not say where the weights of a {type(module).__name__} are stored, so they cannot stay "
            "on disk; if they fit in memory, use mh.load without max_memory"
        )
    return hook.weights_map


_OF_MODELS: weakref.WeakKeyDictionary[nn.Module, WeightsOnDisk] = weakref.WeakKeyDictionary()


def take_over(hf_model: Any) -> None:
    """Make a transformers model that was loaded with blocks on disk keep them there, without accelerate's hooks."""
    places: dict[str, Any] = hf_model.hf_device_map
    on_disk = {name: hf_model.get_submodule(name) for name, place in places.items() if place == "disk"}
    _OF_MODELS[hf_model] = WeightsOnDisk({int(name.rpartition(".")[2]): part for name, part in on_disk.items()})
    del hf_model.hf_device_map
    remove_hook_from_module(hf_model, recurse=True)
    for module in hf_model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) is type(module).forward:
            del module.forward  # accelerate puts the method back as an attribute of the module


def on_disk_of(module: nn.Module) -> WeightsOnDisk | None:
    """The weights on disk of a TransformerLens model; None if all are in memory."""
    return _OF_MODELS.get(getattr(module, "original_model", module))


@dataclass(frozen=True)
class Room:
    """How much memory the weights of a model may take, in bytes, and on which device; None for the least possible."""

    memory: int | None
    device: torch.device


@dataclass(frozen=True)
class Spread:
    """Weights where accelerate puts them: the arguments of ``from_pretrained``."""

    device_map: str | Mapping[str, int | str]
    max_memory: Mapping[str | int, int | str] | None = None


def place(
    config: transformers.PreTrainedConfig, source: str, room: Room, *, dtype: torch.dtype
) -> dict[str, str] | None:
    """A device map that leaves the first blocks on disk, with room for one; None if all fit into the memory."""
    with torch.device("meta"):  # weights that have sizes and no values
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    n_layers = config.get_text_config(decoder=True).num_hidden_layers
    lists = [each for each in model.named_modules() if isinstance(each[1], nn.ModuleList) and len(each[1]) == n_layers]
    if not lists:
        raise ModelSourceError(f"max_memory: model {source!r} has no list of {n_layers} blocks; leave max_memory out")
    name, blocks = lists[0]
    sizes = [bytes_of(block.parameters()) for block in blocks]
    others = bytes_of(model.parameters()) - sum(sizes)
    if dtype.itemsize < 4:  # the unembedding is in memory in float32 too
        others += 4 * model.get_output_embeddings().weight.numel()
    least = others + max(sizes)
    memory = least if room.memory is None else room.memory
    if others + sum(sizes) <= memory:
        return None
    if memory < least:
        raise ModelSourceError(
            f"max_memory is {show_bytes(memory)}, but model {source!r} needs at least {show_bytes(least)}: "
            f"{show_bytes(others)} for its embeddings and {show_bytes(max(sizes))} for its largest block"
        )
    first = len(sizes)
    while least + sum(sizes[first - 1 :]) <= memory:
        first -= 1
    layers = {f"{name}.{layer}": "disk" if layer < first else str(room.device) for layer in range(len(sizes))}
    return {part: str(room.device) for part in beside(model, name)} | layers


def beside(module: nn.Module, blocks: str, name: str = "") -> Iterator[str]:
    """The names of the largest parts of a model that do not contain its blocks."""
    for child, part in module.named_children():
        full = f"{name}{child}"
        if blocks.startswith(f"{full}."):
            yield from beside(part, blocks, f"{full}.")
        elif full != blocks:
            yield full


def bytes_of(weights: Iterable[nn.Parameter]) -> int:
    """The bytes of some weights."""
    return sum(weight.numel() * weight.itemsize for weight in weights)
