"""A run that goes on from a cached residual stream, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import mechheads as mh


def resumed(
    model: mh.Model, residual: Tensor, layer: int, hooks: Sequence[tuple[str, Callable[..., Any]]] = ()
) -> Tensor:
    """The final states after block ``layer`` and all later ones, from the residual stream before block ``layer``."""

    def run() -> Tensor:
        blocks, stream = model.backend.blocks_for(*residual.shape[:2]), residual
        for later in range(layer, model.n_layers):
            stream = blocks(later, stream)
        return model.backend.finish(stream)

    with torch.no_grad():
        return model.backend.under(hooks, run)
