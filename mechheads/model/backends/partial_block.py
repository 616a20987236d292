"""How blocks run: with cached keys, and only as far as needed, by objects that record keys, values or z and stop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@runtime_checkable
class Keys(Protocol):
    """An object between a block's keys and values and its attention. It may record them, add to them, or stop there."""

    def update(
        self, k: Float[Tensor, "row kv pos d_head"], v: Float[Tensor, "row kv pos d_head"], layer: int, /, *_: Any
    ) -> tuple[Float[Tensor, "row kv key d_head"], Float[Tensor, "row kv key d_head"]]: ...


@runtime_checkable
class Blocks(Protocol):
    """The blocks of a model, prepared for rows at certain positions; what they give is where the residual was."""

    def __call__(
        self,
        layer: int,
        residual: Float[Tensor, "row pos d_model"],
        keys: Keys | None = None,
        mask: Float[Tensor, "row 1 pos key"] | None = None,
    ) -> Float[Tensor, "row pos d_model"]: ...


_NAMES_OF_KEYS = ("past_key_values", "cache", "layer_past", "past_key_value")
"""What releases of transformers, and code that comes with a model, call cached keys."""


def name_of_keys(forward: Callable[..., Any]) -> str:
    """The name by which a block, or its attention, takes cached keys.

    A name that a decorator still translates is not in the signature: it would be a warning at each call, or ignored.
    """
    given = inspect.signature(forward).parameters
    typed = [name for name, parameter in given.items() if "Cache" in str(parameter.annotation)]
    return next((name for name in (*_NAMES_OF_KEYS, *typed) if name in given), _NAMES_OF_KEYS[0])


class Stopped(Exception):
    """Raised inside a block to stop it."""


class Noted:
    """Records keys and values at the first call, after the ``past``, and stops the block; later calls give them.

    So a block can be computed at some positions only, with the keys and values of all positions.
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
    """Call a block that is stopped from inside."""
    try:
        run()
    except Stopped:
        return
    raise RuntimeError(f"block {layer} ran to its end: its attention did not read the keys or z that should stop it")


def mask_of(seen: Bool[Tensor, "row 1 pos key"], dtype: torch.dtype) -> Float[Tensor, "row 1 pos key"]:
    """An attention mask, added to the scores, that lets each token see exactly these keys."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
