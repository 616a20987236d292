"""Which device each part of a model is on, if its blocks are spread over several."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from accelerate.utils import check_device_map
from torch import nn

from mechheads.model.backends.devices import free_bytes
from mechheads.model.sources.cuts import cut_by_work
from mechheads.model.sources.errors import ModelSourceError
from mechheads.model.sources.placing import beside, bytes_of, find_blocks, without_weights
from mechheads.units import show_bytes

_FOR_WEIGHTS = 0.9
"""The share of a GPU's free memory that weights may take by default; the rest is for what is computed."""


@dataclass(frozen=True)
class Spread:
    """How the weights of a model are spread over devices.

    Attributes:
        places: the device of each part, by accelerate's names; None to cut the blocks by work.
        memory: the bytes of weights that each device may hold; None for most of what is free on every GPU.
    """

    places: Mapping[str, torch.device] | None
    memory: Mapping[torch.device, int] | None

    @classmethod
    def of(cls, device_map: Any, memory: Mapping[torch.device, int] | None) -> Spread:
        """What ``mh.load`` was asked for.

        Args:
            memory: ``max_memory`` in bytes.

        Raises:
            ValueError: if this is not a device map, or it leaves parts outside of GPUs.
        """
        if device_map == "auto":
            return cls(None, memory)
        if not isinstance(device_map, Mapping):
            raise ValueError(
                f'device_map is {device_map!r}; choose "auto", or give the device of each part, such as '
                '{"model.embed_tokens": 0, "model.layers.0": 0, ...}'
            )
        if memory is not None:
            raise ValueError("max_memory: device_map says where each part goes; leave max_memory out")
        return cls({name: _device(name, at) for name, at in device_map.items()}, None)

    def find(
        self, config: transformers.PreTrainedConfig, source: str, *, dtype: torch.dtype, trust_remote_code: bool
    ) -> dict[str, str]:
        """A device map for ``from_pretrained``.

        Raises:
            ModelSourceError: if there are fewer than two devices, the model does not fit, or the map misses weights.
        """
        model = without_weights(config, dtype=dtype, trust_remote_code=trust_remote_code)
        if self.places is not None:
            return self._checked(self.places, model)
        memory = self.memory if self.memory is not None else _free_memory()
        if len(memory) < 2:
            raise ModelSourceError(
                f'device_map="auto" spreads a model over several GPUs, and there {_are(len(memory))}. With one GPU, '
                'give device="cuda"; if the model does not fit, also max_memory="20 GB": the other blocks stay on disk'
            )
        return _cut(model, config, source, memory, dtype)

    def _checked(self, places: Mapping[str, torch.device], model: nn.Module) -> dict[str, str]:
        named: dict[str, Any] = {name: str(at) for name, at in places.items()}
        if len(set(named.values())) < 2:
            only = next(iter(named.values()), "none")
            raise ModelSourceError(f"device_map names one device only ({only}); leave it out and give device=")
        try:
            check_device_map(model, named)
        except ValueError as error:
            raise ModelSourceError(f"device_map: {error}") from error
        _check_tied(model, places)
        return named


def _check_tied(model: nn.Module, places: Mapping[str, torch.device]) -> None:
    seen: dict[int, tuple[str, torch.device]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        parts = [part for part in places if f"{name}.".startswith(f"{part}." if part else "")]
        first, there = seen.setdefault(id(weight), (name, places[max(parts, key=len)]))
        if there != (at := places[max(parts, key=len)]):
            raise ModelSourceError(
                f"device_map puts {first} on {there} and {name} on {at}, but these are the same weights; put both on "
                "one device"
            )


def _cut(
    model: nn.Module, config: Any, source: str, memory: Mapping[torch.device, int], dtype: torch.dtype
) -> dict[str, str]:
    """The blocks cut by work, the embedding with the first block, norm and unembedding with the last one.

    An unembedding that is tied to the embedding stays with it.
    """
    name, blocks = find_blocks(model, config, source, "device_map")
    sizes = [bytes_of(block.parameters()) for block in blocks]
    before, after = _around(model, name)
    ends = _needed(model, before, dtype), _needed(model, after, dtype)
    rooms = list(memory.values())
    rooms[0] -= ends[0]
    rooms[-1] -= ends[1]
    cuts = cut_by_work(sizes, rooms)
    if cuts is None:
        raise ModelSourceError(
            f"device_map: model {source!r} needs {show_bytes(sum(sizes) + sum(ends))}, of which {show_bytes(ends[0])} "
            f"on the first and {show_bytes(ends[1])} on the last device; it does not fit, block by block, into "
            f"{', '.join(f'{show_bytes(room)} on {device}' for device, room in memory.items())}. Give more memory, "
            "more devices, or a smaller dtype"
        )
    devices = [str(device) for device in memory]
    bounds = [0, *cuts, len(sizes)]
    layers = {
        f"{name}.{layer}": device
        for device, begin, end in zip(devices, bounds, bounds[1:], strict=False)
        for layer in range(begin, end)
    }
    return dict.fromkeys(before, devices[0]) | layers | dict.fromkeys(after, devices[-1])


def _around(model: Any, blocks: str) -> tuple[list[str], list[str]]:
    """The parts beside the blocks: those on the first device, and those on the last one."""
    order = [name for name, _ in model.named_modules()]
    embedding = model.get_input_embeddings().weight
    first: list[str] = []
    last: list[str] = []
    for name in beside(model, blocks):
        weights = list(model.get_submodule(name).parameters())
        is_last = order.index(name) > order.index(blocks) and weights and not any(w is embedding for w in weights)
        (last if is_last else first).append(name)
    return first, last


def _needed(model: Any, parts: list[str], dtype: torch.dtype) -> int:
    """The bytes of some parts; in half precision, the unembedding is kept in float32 too."""
    weights = {id(weight): weight for part in parts for weight in model.get_submodule(part).parameters()}
    unembedding = model.get_output_embeddings().weight
    copied = 4 * unembedding.numel() if dtype.itemsize < 4 and id(unembedding) in weights else 0
    return bytes_of(weights.values()) + copied


def _device(name: str, at: Any) -> torch.device:
    device = None
    with suppress(RuntimeError, TypeError):
        device = torch.device("cuda", at) if isinstance(at, int) else torch.device(at)
    if device is None or device.type in ("cpu", "meta"):
        raise ValueError(
            f'device_map puts {name!r} on {at!r}; parts of a model go to GPUs, such as 0 or "cuda:0". To leave blocks '
            'on disk, give max_memory="20 GB" without device_map'
        )
    return device


def _free_memory() -> dict[torch.device, int]:
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return {device: int(_FOR_WEIGHTS * (free_bytes(device) or 0)) for device in devices}


def _are(number: int) -> str:
    return "is none" if number == 0 else "is one"
