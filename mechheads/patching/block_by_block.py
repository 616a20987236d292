"""Gradients with the graph of one block in memory at a time.

The run is made once without a graph, and keeps the residual stream before each block. Then, from the last block to the
first, each block runs again on that stream, and the gradient passes back through this block alone (Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174). The gradients are the same, and cost one more
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.base import Hook
from mechheads.model.backends.partial_block import Blocks
from mechheads.model.backends.state import with_gradient
from mechheads.model.core import ModelCore

Key = tuple[str, int]
"""An activation and its layer."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """The gradients that a pass through some blocks gives.

    Attributes:
        of: with respect to each activation that is watched.
        leaf: with respect to what the hooks change the run by; None if nothing was asked for.
    """

    of: dict[Key, Float[Tensor, "prompt pos ..."]] = field(default_factory=dict)
    leaf: Float[Tensor, "*shape"] | None = None


@dataclass(frozen=True, eq=False)
class BlockByBlock:
    """A run without a graph, through whose blocks gradients pass one by one.

    Attributes:
        streams: the residual stream before each block, and after the last.
        hooks: changes of the run, by name.
    """

    model: ModelCore
    blocks: Blocks
    streams: Sequence[Float[Tensor, "prompt pos d_model"]]
    hooks: Sequence[Hook]

    @classmethod
    def run(
        cls,
        model: ModelCore,
        ids: Int[Tensor, "prompt pos"],
        hooks: Sequence[Hook] = (),
        embeddings: Float[Tensor, "prompt pos d_model"] | None = None,
    ) -> BlockByBlock:
        """Run some tokens, or the residual stream before the first block in their place."""

        def forward() -> None:
            for layer in range(model.n_layers):
                streams.append(blocks(layer, streams[-1]))

        with torch.no_grad():
            start, blocks = model.backend.embed(ids)
            streams = [start if embeddings is None else embeddings]
            model.backend.under(hooks, forward)
        return cls(model, blocks, streams, hooks)

    def measured(
        self, measure: Callable[[Float[Tensor, "prompt pos d_model"]], Float[Tensor, ""]]
    ) -> tuple[float, Float[Tensor, "prompt pos d_model"]]:
        """A measure of the states after the final norm, and its gradient at the stream after the last block."""
        with with_gradient():
            last = self.streams[-1].detach().requires_grad_()
            value = measure(self.model.backend.finish(last))
            return float(value.detach()), torch.autograd.grad(value, last)[0]

    def back(
        self,
        slope: Float[Tensor, "prompt pos d_model"],
        layers: range,
        keys: Sequence[Key] = (),
        leaf: Float[Tensor, "*shape"] | None = None,
    ) -> Slopes:
        """Pass a gradient back through some blocks, from the last of them to the first.

        Args:
            slope: with respect to the residual stream after the last of them.
            keys: the activations in these blocks that are watched.
            leaf: what the hooks change the run by, such as gates, if its gradient is wanted.
        """
        seen: dict[Key, Tensor] = {}
        found = Slopes(leaf=None if leaf is None else torch.zeros_like(leaf))

        def watch(value: Tensor, hook: Any, key: Key) -> Tensor:
            seen[key] = value
            return value

        def run() -> None:
            before = slope
            for layer in reversed(layers):
                with with_gradient():
                    stream = self.streams[layer].detach().requires_grad_()
                    end = self.blocks(layer, stream)
                here = [key for key in keys if key[1] == layer]
                inputs = [stream, *(seen.pop(key) for key in here), *([] if leaf is None else [leaf])]
                before, *each = torch.autograd.grad(end, inputs, before, allow_unused=leaf is not None)
                found.of.update(zip(here, each, strict=False))
                if found.leaf is not None and each[-1] is not None:
                    found.leaf.add_(each[-1])

        watching = [(self.model.hook_name(*key), partial(watch, key=key)) for key in keys]
        self.model.backend.under([*self.hooks, *watching], run)
        return found
