"""Several texts in one row, in which tokens that texts begin with stand only once.

A token attends only to tokens before it, so texts that begin alike have the same states there, under the same gates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

_LONGEST = 128
"""Tokens in a row: with more, masked products of attention cost more than shared tokens save."""


@dataclass(frozen=True, eq=False)
class SharedRow:
    """Texts in one row.

    Attributes:
        item, position: a text that each token of the row belongs to, and the token's position there.
        seen: which tokens of the row each token sees: itself and those before it in its text.
        index: where the tokens of each text are in the row; 0 from its end on.
    """

    item: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    seen: Bool[Tensor, "token token"]
    index: Int[Tensor, "item pos"]


def shared_row(ids: Int[Tensor, "item pos"], ends: Int[Tensor, " item"]) -> SharedRow | None:
    """The first tokens of some texts in one row; None if no token is saved, or the row would be too long.

    Args:
        ends: how many tokens of each text are needed.
    """
    found: dict[tuple[int, int], int] = {}
    first: list[tuple[int, int]] = []
    seen: list[list[int]] = []
    index = torch.zeros_like(ids, device="cpu")
    for item, (text, end) in enumerate(zip(ids.tolist(), ends.tolist(), strict=True)):
        before, way = -1, []
        for position, token in enumerate(text[:end]):
            at = found.setdefault((before, token), len(found))
            way = [*way, at]
            if at == len(first):
                first.append((item, position))
                seen.append(way)
            index[item, position] = before = at
    if len(first) > _LONGEST or len(first) == ids.numel():
        return None
    sees = torch.zeros(len(first), len(first), dtype=torch.bool)
    for token, way in enumerate(seen):
        sees[token, way] = True
    items, positions = torch.tensor(first).T
    return SharedRow(*(each.to(ids.device) for each in (items, positions, sees, index)))
