"""One activation of every head in a run: z, q, k, v, results and attention patterns, layer by layer."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from mechheads.heads import HeadLike, check_head, kv_head, parse_heads
from mechheads.model.changes import without_autocast
from mechheads.model.core import ModelCore
from mechheads.model.parts import moved
from mechheads.results.kinds import draw

if TYPE_CHECKING:
    import plotly.graph_objects as go


class LayerStore:
    """One tensor for each layer, [prompt, ...], added part by part along the prompts, in one allocation or on disk.
    On disk, the parts are in a temporary folder, which is removed with the store."""

    def __init__(self, layers: int, prompts: int, on_disk: bool = False) -> None:
        self.n_layers, self._prompts = layers, prompts
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
            self._whole = part.new_empty(self.n_layers, self._prompts, *part.shape[1:])
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


_VIEW = "mechheads.explorer.explore:view_attention"


class HeadTensor:
    """One activation of every head: ``run.z["L23H4"]`` is [prompt, pos, d_head].

    Index it by ``"L23H4"``, ``(23, 4)`` or a ``HeadId``. ``layer(23)`` is [prompt, head, ...] and
    ``stacked()`` is the whole tensor, [prompt, layer, head, ...]. Keys and values have one entry for each
    key/value head; indexing by a query head gives the one that it reads. If ``copied``, it gives copies, so that
    writing into them does not change the run.
    """

    def __init__(self, layers: LayerStore, n_heads: int, n_stored: int, copied: bool = False) -> None:
        self._layers, self._n_heads, self._n_stored, self._copied = layers, n_heads, n_stored, copied

    def __getitem__(self, head: HeadLike) -> Tensor:
        parsed = check_head(head, self._layers.n_layers, self._n_heads)
        value = self._layers[parsed.layer][:, kv_head(parsed.head, self._n_heads, self._n_stored)]
        return value.clone() if self._copied else value

    def layer(self, layer: int) -> Float[Tensor, "prompt head *rest"]:
        return self._layers[layer].clone() if self._copied else self._layers[layer]

    def stacked(self) -> Float[Tensor, "prompt layer head *rest"]:
        return torch.stack([self.layer(layer) for layer in range(self._layers.n_layers)], dim=1)

    @property
    def shape(self) -> torch.Size:
        first = self.layer(0).shape
        return torch.Size([first[0], self._layers.n_layers, *first[1:]])

    def __repr__(self) -> str:
        return f"HeadTensor{list(self.shape)}"


class HeadResult(HeadTensor):
    """z @ W_O of every head, which it adds to the attention output; computed on demand."""

    def __init__(self, z: LayerStore, n_heads: int, model: ModelCore) -> None:
        super().__init__(z, n_heads, n_heads)
        self._model = model

    def __getitem__(self, head: HeadLike) -> Float[Tensor, "prompt pos d_model"]:
        parsed = check_head(head, self._layers.n_layers, self._n_heads)
        with without_autocast(self._model.device):
            return super().layer(parsed.layer)[:, parsed.head] @ self._model.W_O[parsed.layer][parsed.head]

    def layer(self, layer: int) -> Float[Tensor, "prompt head pos d_model"]:
        with without_autocast(self._model.device):
            return super().layer(layer) @ self._model.W_O[layer]


@dataclass(frozen=True)
class Attention:
    """The attention patterns of a run, ready to plot.

    Attributes:
        pattern: the attention patterns.
        strings: the tokens of each prompt.
        sizes: the numbers of layers and heads.
    """

    pattern: HeadTensor
    strings: tuple[tuple[str, ...], ...]
    sizes: tuple[int, int]

    def plot(self, heads: HeadLike | Sequence[HeadLike] | None = None, prompt: int = 0, **options: Any) -> go.Figure:
        """Plot one prompt's attention patterns with its tokens; a menu selects among several heads.

        Args:
            heads: one or several heads, drawn in this order; every head by default.
            prompt: the index of the prompt.
            options: passed to ``mh.plots.attention``.
        """
        from mechheads.plots.attention import attention

        if not 0 <= prompt < len(self.strings):
            raise ValueError(f"prompt {prompt} is out of range: this run has prompts 0..{len(self.strings) - 1}")
        n = len(self.strings[prompt])
        chosen = parse_heads(heads, *self.sizes)
        patterns: dict[HeadLike, np.ndarray] = {
            head: self.pattern[head][prompt, :n, :n].float().cpu().numpy() for head in chosen
        }
        return attention(patterns, list(self.strings[prompt]), **options)

    def view(self, path: str | Path | None = None) -> Any:
        """Show all heads' patterns with their tokens: in the notebook, elsewhere in a page.

        Each query shows its attention to the first token and to the eight other keys with the most. The map of all
        heads is coloured by the share of their attention to the previous token, or by another such number of the run.

        Args:
            path: write the page to this file; without it, a page is written to ``patterns.html``.

        Returns:
            What a notebook shows, or the path of the page, which is one file and needs no network.
        """
        return draw(_VIEW, self, path)
