"""``LayerStore``: one tensor for each layer, in memory or on disk as safetensors."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechheads.model.backends.devices import Devices, moved


class LayerStore:
    """One tensor for each layer, [prompt, ...], added part by part along the prompts.

    Args:
        layers, prompts: the numbers of layers and prompts. In memory, all layers share one allocation, so that stored
            tensors do not fragment the memory that temporary tensors use.
        on_disk: store the parts in a temporary folder instead, which is removed with the store.
        devices: where the layers of the model are, each of which is kept on its own device; by default, where the parts
            come from.
    """

    def __init__(self, layers: int, prompts: int, on_disk: bool = False, devices: Devices | None = None) -> None:
        self._layers, self._prompts, self._devices = layers, prompts, devices
        self._slots: dict[int, tuple[torch.device, int]] = {}
        self._filled: dict[int, int] = {}
        self._whole: dict[torch.device, Tensor] = {}
        self._paths: dict[int, list[Path]] = {}
        self._folder: Path | None = None
        self._on: dict[int, torch.device] = {}
        self._last: tuple[int, Tensor] | None = None
        if on_disk:
            folder = tempfile.TemporaryDirectory(prefix="mechheads-")
            self._folder = Path(folder.name)
            self._cleanup = weakref.finalize(self, folder.cleanup)

    @property
    def on_disk(self) -> bool:
        return self._folder is not None

    @property
    def n_layers(self) -> int:
        return self._layers

    def add(self, layer: int, part: Tensor) -> None:
        """Append the next prompts of a layer."""
        if self._devices is not None:
            part = moved(part, self._devices.blocks[layer])
        if self._folder is not None:
            self._last = None
            paths = self._paths.setdefault(layer, [])
            path = self._folder / f"{layer}.{len(paths)}.safetensors"
            self._on[layer] = part.device
            save_file({"part": part.contiguous().cpu()}, path)
            paths.append(path)
            return
        if part.device not in self._whole:
            layers = self._layers if self._devices is None else self._devices.blocks.count(part.device)
            self._whole[part.device] = part.new_empty(min(layers, self._layers), self._prompts, *part.shape[1:])
        whole, filled = self._whole[part.device], self._filled.get(layer, 0)
        _, slot = self._slots.setdefault(layer, (part.device, sum(on == part.device for on, _ in self._slots.values())))
        whole[slot, filled : filled + len(part)] = part
        self._filled[layer] = filled + len(part)

    def __getitem__(self, layer: int) -> Tensor:
        """A layer's tensor, on the device that analyses see."""
        there = self.there(layer)
        return there if self._devices is None else moved(there, self._devices.home)

    def there(self, layer: int) -> Tensor:
        """A layer's tensor, on the layer's own device."""
        if self._folder is None:
            device, slot = self._slots[layer]
            return self._whole[device][slot]
        if self._last is None or self._last[0] != layer:
            parts = [load_file(path)["part"] for path in self._paths[layer]]
            self._last = (layer, moved(torch.cat(parts), self._on[layer]))
        return self._last[1]
