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
        on_disk: whether parts go to a temporary folder, removed with the store.
    """

    def __init__(self, on_disk: bool = False) -> None:
        self._parts: dict[int, list[Tensor | Path]] = {}
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
        return len(self._parts)

    def add(self, layer: int, part: Tensor) -> None:
        """Append the next prompts of a layer."""
        self._last = None
        parts = self._parts.setdefault(layer, [])
        if self._folder is None:
            parts.append(part)
        else:
            path = self._folder / f"{layer}.{len(parts)}.safetensors"
            self._device = str(part.device)
            save_file({"part": part.contiguous()}, path)
            parts.append(path)

    def __getitem__(self, layer: int) -> Tensor:
        if self._last is not None and self._last[0] == layer:
            return self._last[1]
        parts = [load_file(p, self._device)["part"] if isinstance(p, Path) else p for p in self._parts[layer]]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        if not self.on_disk and len(parts) > 1:
            self._parts[layer] = [whole]
        if self.on_disk:
            self._last = (layer, whole)
        return whole
