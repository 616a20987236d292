"""Which query heads are ablated together: one at a time, or all that share a key/value head.

Under grouped-query attention several query heads read the keys and values of one key/value head. A group is named by
its first query head, and a score of a group is the score of each of its heads. In a model without grouped queries every
group is a single head, and both ways are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from mechheads.heads import HeadId, Heads, check_heads, matched_heads
from mechheads.messages.arguments import check_known
from mechheads.model.model import Model

Group = Literal["query", "kv"]


@dataclass(frozen=True)
class Groups:
    """The groups of a model's query heads: each of ``size`` neighbours, which ``group=`` calls ``name``."""

    n_layers: int
    n_heads: int
    size: int
    name: Group = "query"

    @classmethod
    def of(cls, model: Model, group: Group) -> Groups:
        """The groups that ``group=`` asks for: ``"query"`` or ``"kv"``."""
        check_known("group", group, get_args(Group))
        return cls(model.n_layers, model.n_heads, 1 if group == "query" else model.n_heads // model.n_kv_heads, group)

    @property
    def unit(self) -> str:
        """What is ablated as one: "head" or "key/value group"."""
        return "head" if self.size == 1 else "key/value group"

    def first(self, head: HeadId) -> HeadId:
        """The first query head of a head's group, which names the group."""
        return HeadId(head.layer, head.head - head.head % self.size)

    def firsts(self, heads: Iterable[HeadId]) -> tuple[HeadId, ...]:
        """The groups of these heads, in their order and each once."""
        return tuple(dict.fromkeys(self.first(head) for head in heads))

    def units(self, heads: Heads | None) -> tuple[HeadId, ...]:
        """The groups of heads as a user gives them, in order of layer and head; ``None`` gives every group."""
        return self.firsts(check_heads(heads, self.n_layers, self.n_heads))

    def members(self, heads: Iterable[HeadId]) -> tuple[HeadId, ...]:
        """All query heads of these heads' groups, group by group."""
        return tuple(HeadId(head.layer, head.head + i) for head in self.firsts(heads) for i in range(self.size))

    def spread(self, values: Float[np.ndarray, "layer head *rest"]) -> Float[np.ndarray, "layer head *rest"]:
        """Gives the value of each group's first head to all of its heads."""
        return np.repeat(values[:, :: self.size], self.size, axis=1)

    def matched(self, heads: Sequence[HeadId], excluded: Collection[HeadId], seed: Sequence[int]) -> tuple[HeadId, ...]:
        """Random groups, as many as these and from the same layers; every group is named by its first head."""
        inside = {head for head in check_heads(None, self.n_layers, self.n_heads) if head.head % self.size}
        return matched_heads(heads, {*excluded, *inside}, self.n_layers, self.n_heads, seed)

    def random_sets(self, heads: Sequence[HeadId], *, draws: int, seed: int) -> dict[str, tuple[HeadId, ...]]:
        """Several draws of ``matched``, by the names "random 1", "random 2" and so on."""
        return {f"random {i + 1}": self.matched(heads, heads, [seed, i]) for i in range(draws)}

    def about(self) -> dict[str, Any]:
        """What a result records: how many neighbouring heads have a common score, and what they are."""
        return {"group": self.name, "together": self.size, "unit": self.unit}

    def __str__(self) -> str:
        return "one query head at a time" if self.size == 1 else f"the {self.size} query heads of a key/value head"
