"""Which positions of which prompts a wave computes, and how its rows hold them.

A ``Window`` has one row per prompt, each as wide as the widest prompt needs. ``Packed`` puts several prompts into one
row: their shared first tokens, such as those of a chat template, are there once, and short prompts need no padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.model.backends.base import Layout


@runtime_checkable
class Rows(Protocol):
    """What a wave needs to know about its rows.

    Attributes:
        layout: how copies of the prompts are laid out in rows.
        start: the first position that changes [prompt].
        at: the positions that are read [prompt, position].
        n: the number of rows; ``width``: the tokens in each.
        n_past: how many cached positions come before a row.
        alike: whether all rows hold the same positions.
        positions: the position of each token.
        inside: the index in its row of each read position; ``read_positions``: its position in the prompt.
    """

    @property
    def layout(self) -> Layout: ...
    @property
    def start(self) -> Int[Tensor, " prompt"]: ...
    @property
    def at(self) -> Int[Tensor, "prompt position"]: ...
    @property
    def n(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def n_past(self) -> int: ...
    @property
    def alike(self) -> bool: ...
    @property
    def positions(self) -> Int[Tensor, "row width"]: ...
    @property
    def inside(self) -> Int[Tensor, "row read"]: ...
    @property
    def read_positions(self) -> Int[Tensor, "row read"]: ...

    def take(self, values: Float[Tensor, "prompt pos *rest"]) -> Float[Tensor, "row width *rest"]:
        """The values at the positions that are computed."""
        ...

    def past(self, values: Float[Tensor, "prompt kv pos d_head"]) -> Float[Tensor, "row kv past d_head"]:
        """Cached keys or values of the positions before each row."""
        ...

    def seen(
        self, visible: Bool[Tensor, "query key"]
    ) -> tuple[Bool[Tensor, "row width past"], Bool[Tensor, "row width width"]]:
        """Which past positions and which tokens of its row each token sees; ``visible`` gives it for positions."""
        ...


@dataclass(frozen=True)
class Window:
    """One row per prompt, from the first position that changes to the last that is read.

    Attributes:
        start: the first position that changes [prompt]; ``width``: the number of positions from there on.
        at: the positions that are read [prompt, position].
        layout: how copies of the prompts are laid out in rows.
    """

    start: Int[Tensor, " prompt"]
    width: int
    at: Int[Tensor, "prompt position"]
    layout: Layout

    @classmethod
    def from_start(
        cls, start: Int[Tensor, " prompt"], at: Int[Tensor, "prompt position"], layout: Layout, pos: int
    ) -> Window:
        """The narrowest window for these changes; wider if the layout needs all rows to start at one position."""
        if layout == "whole":
            return cls(torch.zeros_like(start), pos, at, layout)
        last = at.amax(1)
        start = torch.minimum(start, last)
        if layout == "rows":
            start = start.amin().expand_as(start)
        return cls(start, int((last - start).amax()) + 1, at, layout)

    @property
    def n(self) -> int:
        return len(self.start)

    @property
    def n_past(self) -> int:
        return self._starts[1]

    @property
    def alike(self) -> bool:
        return self._starts[0] == self._starts[1]

    @cached_property
    def _starts(self) -> tuple[int, int]:
        """The earliest and the latest start; the CPU waits for them once."""
        first, last = self.start.aminmax()
        return int(first), int(last)

    @property
    def positions(self) -> Int[Tensor, "prompt width"]:
        """The computed positions; after the last position that a prompt reads, that position is repeated."""
        ahead = torch.arange(self.width, device=self.start.device)
        return torch.minimum(self.start[:, None] + ahead, self.at.amax(1, keepdim=True))

    @property
    def inside(self) -> Int[Tensor, "prompt position"]:
        return (self.at - self.start[:, None]).clamp_min(0)

    @property
    def read_positions(self) -> Int[Tensor, "prompt position"]:
        return self.at

    def take(self, values: Float[Tensor, "prompt pos *rest"]) -> Float[Tensor, "prompt width *rest"]:
        row = torch.arange(len(values), device=values.device)[:, None]
        return values[row, self.positions]

    def past(self, values: Float[Tensor, "prompt kv pos d_head"]) -> Float[Tensor, "prompt kv past d_head"]:
        return values[:, :, : self.n_past]

    def seen(
        self, visible: Bool[Tensor, "query key"]
    ) -> tuple[Bool[Tensor, "prompt width past"], Bool[Tensor, "prompt width width"]]:
        where = self.positions
        before = torch.arange(self.n_past, device=where.device) < self.start[:, None]
        past = visible[where][..., : self.n_past] & before[:, None]
        ahead = torch.ones(self.width, self.width, dtype=torch.bool, device=where.device).tril()
        own = visible[where[:, :, None], where[:, None, :]] & ahead
        return past, own | torch.eye(self.width, dtype=torch.bool, device=where.device)

    def rows(self, rows: slice) -> Window:
        """The same window for some of the prompts."""
        return replace(self, start=self.start[rows], at=self.at[rows])
