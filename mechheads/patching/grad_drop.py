"""GradDrop: gradients that leave out one layer at a time, for heads whose direct and indirect effects cancel.

With layer l dropped, the gradient does not pass through what block l adds to the residual stream: there, the gradient
before the block is the gradient after it. An estimate is the sum of the absolute estimates over all dropped layers,
divided by n_layers - 1 (Kramár et al. 2024, arXiv 2403.00745).

Only gradients of heads below the dropped layer have to be computed. Without their own layer, heads have no effect, and
a layer below them is on none of their paths, so that dropping it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.patching.block_by_block import BlockByBlock
from mechheads.patching.gradients import Watched


@dataclass(frozen=True)
class GradDrop:
    """The gradient at the base run, and the gradient with each layer dropped, for the heads below it.

    Attributes:
        n_layers: of the model; more than 1.
    """

    n_layers: int

    def counts(self, layers: Sequence[int]) -> list[int]:
        return [len(layers), *(sum(layer < dropped for layer in layers) for dropped in self._dropped(layers))]

    def gradients(self, watched: Watched, rows: slice) -> Iterator[Sequence[Float[Tensor, "prompt pos head d_head"]]]:
        layers, streams = watched.watch.layers, list[Tensor]()
        dropped = self._dropped(layers)
        if watched.by_block:
            yield from self._by_block(watched)
            return
        value, z = watched.run(streams=streams)
        slopes = torch.autograd.grad(value, [*z, *(streams[layer] for layer in dropped)], retain_graph=True)
        yield slopes[: len(z)]
        for layer, slope in zip(dropped, slopes[len(z) :], strict=True):
            below = [each for each, at in zip(z, layers, strict=True) if at < layer]
            yield torch.autograd.grad(streams[layer - 1], below, slope, retain_graph=True)

    def _by_block(self, watched: Watched) -> Iterator[Sequence[Float[Tensor, "prompt pos head d_head"]]]:
        run, first, keys = BlockByBlock.run(watched.model, watched.tokens.ids), watched.layers.start, watched.keys
        found = run.back(run.measured(watched.measure)[1], watched.layers, keys)
        yield [found.of[key] for key in keys]
        for dropped in self._dropped(watched.watch.layers):
            below = [key for key in keys if key[1] < dropped]
            each = run.back(found.after[dropped], range(first, dropped), below).of
            yield [each[key] for key in below]

    def total(self, effects: Float[Tensor, "gradient prompt head"], layer: int) -> Float[Tensor, "prompt head"]:
        """The first effect counts once for each layer below, the others are those with a layer above dropped."""
        sizes = effects.abs()
        return (layer * sizes[0] + sizes[1:].sum(0)) / (self.n_layers - 1)

    def _dropped(self, layers: Sequence[int]) -> range:
        return range(layers[0] + 1, self.n_layers)
