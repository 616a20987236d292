"""``LayerStore``: one tensor for each layer, in memory or on disk as safetensors."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechheads.model.backends.parts import moved


class LayerStore:
    """One tensor for each layer, [prompt, ...], added part by part along the prompts.

    Args:
        layers, prompts: the numbers of layers and prompts. In memory, all layers share one allocation, so that stored
            tensors do not fragment the memory that temporary tensors use.
        on_disk: store the parts in a temporary folder instead, which is removed with the store.
    """

    def __init__(self, layers: int, prompts: int, on_disk: bool = False) -> None:
        self._layers, self._prompts = layers, prompts
        self._slots: dict[int, int] = {}
        self._filled: dict[int, int] = {}
        self._whole: Tensor | None = None
        self._paths: dict[int, list[Path]] = {}
        self._folder: Path | None = None
        self._on = torch.device("cpu")
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
        if self._folder is not None:
            self._last = None
            paths = self._paths.setdefault(layer, [])
            path = self._folder / f"{layer}.{len(paths)}.safetensors"
            self._on = part.device
            save_file({"part": part.contiguous().cpu()}, path)
            paths.append(path)
            return
        if self._whole is None:
            self._whole = part.new_empty(self._layers, self._prompts, *part.shape[1:])
        slot, filled = self._slots.setdefault(layer, len(self._slots)), self._filled.get(layer, 0)
        self._whole[slot, filled : filled + len(part)] = part
        self._filled[layer] = filled + len(part)

    def __getitem__(self, layer: int) -> Tensor:
        """A layer's tensor."""
        if self._whole is not None:
            return self._whole[self._slots[layer]]
        if self._last is None or self._last[0] != layer:
            parts = [load_file(path)["part"] for path in self._paths[layer]]
            self._last = (layer, moved(torch.cat(parts), self._on))
        return self._last[1]
