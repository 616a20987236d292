"""What has been measured so far, in memory that does not grow with the text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.measure import MEASURES
from mechheads.behaviour.windows import Windows
from mechheads.model.model import Model

_BLOCKS = 256


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over windows, in at most 256 blocks of as many windows each. Full blocks are merged two by two.

    Attributes:
        sums, counts: of each measure over the windows of a block that have it.
        at_distance: attention at each distance.
        width: the number of windows in a block.
        batches, windows, tokens: how many have been measured.
    """

    sums: Float[Tensor, "measure layer head block"]
    counts: Float[Tensor, "measure block"]
    at_distance: Float[Tensor, "layer head distance"]
    width: int = 1
    batches: int = 0
    windows: int = 0
    tokens: int = 0

    @classmethod
    def none(cls, model: Model, window: int) -> Totals:
        """Nothing has been measured."""
        shape = len(MEASURES), model.n_layers, model.n_heads
        sizes = (*shape, _BLOCKS), (len(MEASURES), _BLOCKS), (*shape[1:], window)
        sums, counts, at_distance = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        return cls(sums, counts, at_distance)

    def plus(self, windows: Windows, found: Tensor, at_distance: Tensor) -> Totals:
        """These totals and a batch of windows. An interrupt changes nothing in the old ones."""
        sums, counts, width = self.sums.clone(), self.counts.clone(), self.width
        for number, values in enumerate(found.cpu().unbind(-1), self.windows):
            if number == _BLOCKS * width:
                sums, counts, width = _merged(sums), _merged(counts), 2 * width
            sums[..., number // width] += values.nan_to_num(0)
            counts[:, number // width] += values.isfinite().flatten(1).any(1)
        at_every = self.at_distance.clone()
        at_every[..., : at_distance.shape[-1]] += at_distance.cpu()
        return Totals(
            sums,
            counts,
            at_every,
            width,
            self.batches + 1,
            self.windows + len(windows.ids),
            self.tokens + windows.ids.numel(),
        )

    @property
    def values(self) -> Float[Tensor, "measure layer head block"]:
        """The mean over the windows of each block; NaN if none of them has the measure."""
        return (self.sums / self.counts[:, None, None])[..., : -(-self.windows // self.width)]


def _merged(blocks: Float[Tensor, "*of block"]) -> Float[Tensor, "*of block"]:
    """Neighbouring blocks added, followed by empty ones."""
    return torch.cat([blocks[..., 0::2] + blocks[..., 1::2], torch.zeros_like(blocks[..., 0::2])], dim=-1)
