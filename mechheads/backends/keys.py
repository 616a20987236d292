"""What stands between a block's keys and values and its attention, and stops a block that has done enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.backends.base import Keys


class Stopped(Exception):
    """Raised inside a block by what has seen enough."""


class Noted:
    """The first time it notes keys and values and stops the block; from then on it gives those noted.

    So a block is computed at some positions only, over the keys and values of all.

    Args:
        past: what comes before them.
    """

    def __init__(self, past: Keys | None = None) -> None:
        self._past = past
        self._noted: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        if self._noted is None:
            self._noted = (k, v) if self._past is None else self._past.update(k, v, layer)
            raise Stopped
        return self._noted


def until_stopped(layer: int, run: Callable[[], Any]) -> None:
    """Call a block that something inside it stops.

    Raises:
        RuntimeError: if nothing does.
    """
    try:
        run()
    except Stopped:
        return
    raise RuntimeError(f"block {layer} ran to its end; its attention reads neither keys nor z from where we look")


def mask_of(seen: Bool[Tensor, "row 1 pos key"], dtype: torch.dtype) -> Float[Tensor, "row 1 pos key"]:
    """What is added to attention scores so that each token sees these keys and no others."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
