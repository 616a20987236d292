"""``HeadChange``: how sweeps, generation, Sahara and gates put a new activation into a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.interventions.base import Site
from mechheads.model.backends.base import Hook
from mechheads.model.core import ModelCore


@dataclass(frozen=True)
class HeadChange:
    """Replaces one activation by a function of it.

    Attributes:
        layer, head: which head; for the sites ``k``, ``v`` and ``scored_k`` the key/value head. None means all heads
            together, or ``mlp_out``, which has no heads.
        site: ``z``, ``q``, ``k``, ``v``, ``scored_q``, ``scored_k`` or ``mlp_out``.
        function: computes the new activation [row, pos, d_head] from the old one. When text is generated, it is called
            for one token at a time after the prompt, so it must treat every row and every position independently.
    """

    layer: int
    head: int | None
    site: Site | Literal["mlp_out"]
    function: Callable[[Float[Tensor, "row pos ..."]], Float[Tensor, "row pos ..."]]


Rows = slice | Tensor | None
Region = tuple[Callable[[], Rows], slice]
"""The rows and positions of a batch that a change applies to. The function that gives the rows is called in every
forward pass, because rows leave a batch when they are finished; None means no rows."""


def region(rows: Rows = slice(None), positions: slice = slice(None)) -> Region:
    """A region that stays the same; by default, all rows and positions."""
    return (lambda: rows), positions


EVERYWHERE = region()


def change_hooks(model: ModelCore, changes: Iterable[tuple[HeadChange, Region]]) -> list[Hook]:
    """Hooks that apply the changes, one for each layer and site; changes of one head are applied in order."""
    at: dict[tuple[int, str], list[tuple[HeadChange, Region]]] = {}
    for change, where in changes:
        at.setdefault((change.layer, change.site), []).append((change, where))
    return [(model.hook_name(site, layer), partial(_put, changes=of_site)) for (layer, site), of_site in at.items()]


def _put(value: Tensor, hook: Any, changes: list[tuple[HeadChange, Region]]) -> Tensor:
    if len(changes) == 1 and changes[0][0].head is None and changes[0][1] is EVERYWHERE:
        return changes[0][0].function(value).to(value.dtype)
    value = value.clone(memory_format=torch.contiguous_format)
    for change, (rows_now, positions) in changes:
        if (rows := rows_now()) is not None:
            where = (rows, positions) if change.head is None else (rows, positions, change.head)
            value[where] = change.function(value[where]).to(value.dtype)
    return value
