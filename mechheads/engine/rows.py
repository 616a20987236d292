"""Which positions of which prompts a wave computes, and how its rows hold them.

A ``Window`` has one row per prompt, each as wide as the widest prompt needs. ``Packed`` puts several prompts into one
row: their shared first tokens, such as a chat template's, are there once, and short prompts need no padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mechheads.model.backend import Layout
from mechheads.model.parts import moved

_CPU = torch.device("cpu")
_PACKED_WIDTH = 256
"""The most tokens in a row of packed prompts."""
_ATTENTION_DOUBLES = 2048
"""The row width at which attention costs as much as the rest: wider rows share more tokens but cost more attention."""
_ROW_COSTS = 8
"""The fixed cost of a row, in tokens: many narrow rows make small, slow matrix products."""
_WORTH_PACKING = 0.9


@dataclass(frozen=True)
class Window:
    """One row per prompt, from the first position that changes to the last of those that are read (``at``).
    Positions are worked out on the CPU, so that nothing waits for a GPU, and moved to the device once."""

    start: Int[Tensor, " prompt"]
    width: int
    at: Int[Tensor, "prompt position"]
    layout: Layout
    narrowest: int = 0
    device: torch.device = _CPU

    @classmethod
    def from_start(
        cls,
        start: Int[Tensor, " prompt"],
        at: Int[Tensor, "prompt position"],
        layout: Layout,
        pos: int,
        device: torch.device | None = None,
    ) -> Window:
        """The narrowest window for these changes; wider if the layout needs all rows to start at one position."""
        device, start, at = device or at.device, start.cpu(), at.cpu()
        last = at.amax(1)
        start = torch.minimum(start, last)
        narrowest = int((last - start).amax()) + 1
        if layout == "whole":
            return cls(torch.zeros_like(start), pos, at, layout, narrowest, device)
        if layout == "rows":
            start = start.amin().expand_as(start)
        return cls(start, int((last - start).amax()) + 1, at, layout, narrowest, device)

    @property
    def n(self) -> int:
        return len(self.start)

    @cached_property
    def n_past(self) -> int:
        return int(self.start.amax())

    @cached_property
    def alike(self) -> bool:
        return int(self.start.amin()) == self.n_past

    @cached_property
    def same(self) -> bool:
        """Whether all rows hold the same positions, and the same of them are read."""
        return self.alike and bool((self.at == self.at[:1]).all())

    @cached_property
    def positions(self) -> Int[Tensor, "prompt width"]:
        """The computed positions; after the last position that a prompt reads, that position is repeated."""
        ahead = self.start[:, None] + torch.arange(self.width)
        return moved(torch.minimum(ahead, self.at.amax(1, keepdim=True)), self.device)

    @cached_property
    def inside(self) -> Int[Tensor, "prompt position"]:
        return moved((self.at - self.start[:, None]).clamp_min(0), self.device)

    @cached_property
    def read_positions(self) -> Int[Tensor, "prompt position"]:
        return moved(self.at, self.device)

    @cached_property
    def unchanged(self) -> Bool[Tensor, "prompt position 1"]:
        return moved((self.at < self.start[:, None])[..., None], self.device)

    @cached_property
    def _row(self) -> Int[Tensor, "prompt 1"]:
        return moved(torch.arange(self.n)[:, None], self.device)

    def take(self, values: Float[Tensor, "prompt pos *rest"]) -> Float[Tensor, "prompt width *rest"]:
        """The values at the positions that are computed."""
        return values[self._row, self.positions]

    def past(self, values: Float[Tensor, "prompt kv pos d_head"]) -> Float[Tensor, "prompt kv past d_head"]:
        """Cached keys or values of the positions before each row."""
        return values[:, :, : self.n_past]

    def seen(
        self, visible: Bool[Tensor, "query key"]
    ) -> tuple[Bool[Tensor, "prompt width past"], Bool[Tensor, "prompt width width"]]:
        """Which past positions and which tokens of its row each token sees; ``visible`` gives it for positions."""
        where = self.positions
        before = moved(torch.arange(self.n_past) < self.start[:, None], self.device)
        past = visible[where][..., : self.n_past] & before[:, None]
        ahead = torch.ones(self.width, self.width, dtype=torch.bool, device=where.device).tril()
        own = visible[where[:, :, None], where[:, None, :]] & ahead
        return past, own | torch.eye(self.width, dtype=torch.bool, device=where.device)

    def rows(self, rows: slice) -> Window:
        """The same window for some of the prompts."""
        return replace(self, start=self.start[rows], at=self.at[rows])


@dataclass(frozen=True)
class Packed:
    """One row that holds several prompts: their shared first tokens once, then the rest of each from ``first`` on.
    ``n_past``: the first position that changes, the same for all; ``prompt``, ``position``: of each token."""

    n_past: int
    shared: int
    at: Int[Tensor, "prompt position"]
    prompt: Int[Tensor, " width"]
    position: Int[Tensor, " width"]
    first: Int[Tensor, " prompt"]

    @classmethod
    def of(
        cls, start: int, shared: int, at: Int[Tensor, "prompt position"], device: torch.device | None = None
    ) -> Packed:
        """Pack prompts whose first ``shared`` tokens, and their activations, are the same; changes begin at start."""
        last = at.amax(1)
        shared = min(shared, int(last.amin()))
        start = min(start, shared)
        rest = last - shared + 1
        common = torch.arange(start, shared)
        prompt = torch.arange(len(at)).repeat_interleave(rest)
        first = len(common) + rest.cumsum(0) - rest
        position = torch.cat([common, shared + torch.arange(int(rest.sum())) + len(common) - first[prompt]])
        made = (at, torch.cat([torch.zeros_like(common), prompt]), position, first)
        return cls(start, shared, *(moved(each, device or at.device) for each in made))

    @property
    def layout(self) -> Layout:
        return "queries"  # no other puts several prompts into a row

    @property
    def unchanged(self) -> Bool[Tensor, "prompt position 1"]:
        return (self.at < self.n_past)[..., None]

    @property
    def n(self) -> int:
        return 1

    @property
    def width(self) -> int:
        return len(self.position)

    @property
    def alike(self) -> bool:
        return True

    same = alike

    @property
    def positions(self) -> Int[Tensor, "1 width"]:
        return self.position[None]

    @property
    def inside(self) -> Int[Tensor, "1 read"]:
        """The index in the row of each read position, prompt after prompt."""
        common = (self.at - self.n_past).clamp_min(0)
        return torch.where(self.at < self.shared, common, self.first[:, None] + self.at - self.shared).view(1, -1)

    @property
    def read_positions(self) -> Int[Tensor, "1 read"]:
        return self.at.reshape(1, -1)

    def take(self, values: Float[Tensor, "prompt pos *rest"]) -> Float[Tensor, "1 width *rest"]:
        return values[self.prompt, self.position][None]

    def past(self, values: Float[Tensor, "prompt kv pos d_head"]) -> Float[Tensor, "1 kv past d_head"]:
        return values[:1, :, : self.n_past]

    def seen(
        self, visible: Bool[Tensor, "query key"]
    ) -> tuple[Bool[Tensor, "1 width past"], Bool[Tensor, "1 width width"]]:
        where, common = self.position, self.position < self.shared
        same = self.prompt[:, None] == self.prompt
        own = visible[where[:, None], where] & (common | same) & (where <= where[:, None])
        return visible[where][None, :, : self.n_past], own[None]


Rows = Window | Packed
"""The rows of a wave."""


def shared_start(values: Shaped[Tensor, "prompt pos *rest"], noise: float = 0.0) -> int:
    """How many positions, from 0 on, all prompts share: equal tokens, or activations at most ``noise`` apart."""
    alike = (values - values[:1]).abs() <= noise
    return int(alike.reshape(*alike.shape[:2], -1).all(-1).all(0).long().cumprod(0).sum()) if values.shape[1] else 0


@dataclass(frozen=True)
class Packing:
    """The prompts that share each row, widest row first, so that the others fit into the memory that it frees.
    ``width``: the tokens in the widest row; ``tokens``: in all rows."""

    groups: tuple[tuple[int, ...], ...]
    width: int
    tokens: int

    @classmethod
    def find(cls, ids: Int[Tensor, "prompt pos"], window: Window) -> Packing | None:
        """The cheapest way to pack the prompts into rows, or None if one row per prompt costs about as little.
        Prompts sorted by tokens are cut into rows; the cheapest cuts of the first n extend the cheapest of fewer."""
        start, last = int(window.start.amin()), window.at.amax(1).tolist()
        texts = [row[: end + 1] for row, end in zip(ids.tolist(), last, strict=True)]
        order = sorted(range(len(texts)), key=lambda prompt: texts[prompt])
        alike = [shared_start(ids[order[i : i + 2]]) for i in range(len(order) - 1)]
        cheapest: list[tuple[float, tuple[tuple[int, int], ...]]] = [(0.0, ())]
        for end in range(1, len(order) + 1):
            shared, whole, options = last[order[end - 1]], 0, []
            for begin in reversed(range(end)):
                if begin < end - 1:
                    shared = min(shared, alike[begin])
                shared, whole = min(shared, last[order[begin]]), whole + len(texts[order[begin]])
                width = whole - (end - begin) * shared + max(0, shared - start)
                if options and width > _PACKED_WIDTH:
                    break
                cost, cuts = cheapest[begin]
                options.append((cost + _cost(width) + _ROW_COSTS, (*cuts, (begin, width))))
            cheapest.append(min(options))
        cuts = cheapest[-1][1]
        begins, widths = [begin for begin, _ in cuts], [width for _, width in cuts]
        cost, alone = sum(map(_cost, widths)), len(last) * _cost(window.width)
        if len(cuts) == len(last) or cost > _WORTH_PACKING * alone:
            return None
        rows = sorted(zip(widths, begins, [*begins[1:], len(order)], strict=True), reverse=True)
        return cls(tuple(tuple(order[begin:end]) for _, begin, end in rows), max(widths), sum(widths))


def _cost(width: int) -> float:
    return width * (1 + width / _ATTENTION_DOUBLES)
