"""A block in which the query, key and value of each head, and the MLP, each read an input of their own.

The block runs once on all inputs, up to its queries, keys and values. Each head then takes its query from one input,
its key from another and its value from a third. With grouped queries, several query heads share a key and a value.
There, attention runs once for each member of a group, with the keys and values of that member.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import READS

Streams = Float[Tensor, "input prompt pos d_model"]


@dataclass(frozen=True, eq=False)
class SplitBlock:
    """One block of a model.

    Attributes:
        rows: how many rows of tokens run together.
    """

    model: ModelCore
    layer: int
    rows: int

    def z(self, inputs: Streams, taken: Int[Tensor, "read head"]) -> Float[Tensor, "prompt pos head d_head"]:
        """The z of all heads.

        Args:
            inputs: the residual streams that are read.
            taken: which of them the query, the key and the value of each head read.
        """
        q, k, v = self._reads(inputs)
        n_kv, n = k.shape[3], inputs.shape[1]
        group = taken.shape[1] // n_kv
        heads, kv = (torch.arange(size, device=inputs.device) for size in (taken.shape[1], n_kv))
        given = {"q": q[taken[0], :, :, heads].movedim(0, 2).repeat(group, 1, 1, 1)}
        for site, values, at in (("k", k, taken[1]), ("v", v, taken[2])):
            members = [values[at[member::group], :, :, kv].movedim(0, 2) for member in range(group)]
            given[site] = torch.cat(members)
        z = self._attend(inputs[0].repeat(group, 1, 1), given).unflatten(0, (group, n))
        return torch.stack([z[:, :, :, head][head % group] for head in range(taken.shape[1])], 2)

    def mlp(
        self, before: Float[Tensor, "prompt pos d_model"], attention: Float[Tensor, "prompt pos d_model"]
    ) -> Float[Tensor, "prompt pos d_model"]:
        """What the MLP gives if the residual stream before the block and the attention output are these."""
        block = partial(self._blocks(len(before), before.shape[1]), self.layer, before)
        name, out = self.model.hook_name("mlp_out", self.layer), list[Tensor]()
        run = partial(self.model.backend.with_attention, self.layer, attention, block)
        self.model.backend.under([(name, partial(_stop, out=out))], partial(until_stopped, self.layer, run))
        return out[0]

    def _reads(self, inputs: Streams) -> list[Float[Tensor, "input prompt pos some d_head"]]:
        """q, k and v of all heads for each input."""
        flat, parts = inputs.flatten(0, 1), list[list[Tensor]]()
        for some in flat.split(self.rows):
            seen: dict[str, Tensor] = {}
            names = [(self.model.hook_name(site, self.layer), partial(_note, site=site, seen=seen)) for site in READS]
            block = partial(self._blocks(*some.shape[:2]), self.layer, some)
            self.model.backend.under(names, partial(until_stopped, self.layer, block))
            parts.append([seen[site] for site in READS])
        return [torch.cat(each).unflatten(0, inputs.shape[:2]) for each in zip(*parts, strict=True)]

    def _attend(
        self, residual: Float[Tensor, "row pos d_model"], given: dict[str, Float[Tensor, "row pos some d_head"]]
    ) -> Float[Tensor, "row pos head d_head"]:
        """The z of these queries, keys and values."""
        parts = []
        for start in range(0, len(residual), self.rows):
            at, out = slice(start, start + self.rows), list[Tensor]()
            hooks: list[Any] = [
                (self.model.hook_name(site, self.layer), partial(_give, new=new[at])) for site, new in given.items()
            ]
            hooks.append((self.model.hook_name("z", self.layer), partial(_stop, out=out)))
            some = residual[at]
            block = partial(self._blocks(*some.shape[:2]), self.layer, some)
            self.model.backend.under(hooks, partial(until_stopped, self.layer, block))
            parts.append(out[0])
        return torch.cat(parts)

    def _blocks(self, rows: int, pos: int) -> Any:
        return self.model.backend.blocks_for(rows, pos)


def _note(value: Tensor, hook: Any, site: str, seen: dict[str, Tensor]) -> None:
    """Note a query, key or value, and stop the block after the last of the three."""
    seen[site] = value.clone()
    if len(seen) == len(READS):
        raise Stopped


def _give(value: Tensor, hook: Any, new: Tensor) -> Tensor:
    return new


def _stop(value: Tensor, hook: Any, out: list[Tensor]) -> None:
    out.append(value.clone())
    raise Stopped
