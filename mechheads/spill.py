"""Tensors of every layer, kept in memory up to a budget and on disk, as safetensors, beyond it."""

from __future__ import annotations

import re
import tempfile
import weakref
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

DEFAULT_BUDGET = 4 * 2**30
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def budget_bytes(budget: int | str | None) -> int:
    """A memory budget in bytes: a number, ``"2 GB"``, or None for the default of 4 GB.

    Raises:
        ValueError: if it is less than a byte, not finite, or cannot be read.
    """
    if budget is None:
        return DEFAULT_BUDGET
    size: float = -1
    if isinstance(budget, str):
        if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)?\s*", budget.upper()):
            size = float(match[1]) * _UNITS[match[2] or ""]
    else:
        size = budget
    if not 1 <= size < float("inf"):
        raise ValueError(f'budget is {budget!r}; give bytes or a text such as "2 GB"')
    return int(size)


def show_bytes(size: float) -> str:
    """A size for people: ``1.5 GB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TB"


class LayerStore:
    """One tensor a layer, [prompt, ...], added part by part along the prompts.

    Args:
        layers, prompts: how many there will be; in memory they get one piece for all, so that what is kept does
            not lie scattered among what is thrown away.
        on_disk: whether parts go to a temporary folder instead, removed with the store.
    """

    def __init__(self, layers: int, prompts: int, on_disk: bool = False) -> None:
        self._layers, self._prompts = layers, prompts
        self._slots: dict[int, int] = {}
        self._filled: dict[int, int] = {}
        self._whole: Tensor | None = None
        self._paths: dict[int, list[Path]] = {}
        self._folder: Path | None = None
        self._device = "cpu"
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
            self._device = str(part.device)
            save_file({"part": part.contiguous()}, path)
            paths.append(path)
            return
        if self._whole is None:
            self._whole = part.new_empty(self._layers, self._prompts, *part.shape[1:])
        slot = self._slots.setdefault(layer, len(self._slots))
        filled = self._filled.get(layer, 0)
        self._whole[slot, filled : filled + len(part)] = part
        self._filled[layer] = filled + len(part)

    def __getitem__(self, layer: int) -> Tensor:
        if self._whole is not None:
            return self._whole[self._slots[layer]]
        if self._last is None or self._last[0] != layer:
            parts = [load_file(path, self._device)["part"] for path in self._paths[layer]]
            self._last = (layer, torch.cat(parts))
        return self._last[1]
