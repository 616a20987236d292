"""What blocks are called with, and how."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
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
