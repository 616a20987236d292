"""The first run of path patching: all other heads are frozen, so a change travels through MLPs only.

The sender is a head. If every other head's z is frozen, attention does not react and positions do not mix.
So only the positions that are needed are computed, and in each block everything except the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId, Mlp, Node, kv_head
from mechheads.model.backend import Hook
from mechheads.model.parts import Blocks, Stopped, until_stopped
from mechheads.runs.head_cache import HeadCache

MLPs = Literal["recomputed", "frozen"]

Sender = tuple[HeadId, Float[Tensor, "prompt position d"]]
"""A head with its new z at the computed positions."""


@dataclass(frozen=True)
class Receiver:
    """Where a path ends: the q, k or v of a head, or an MLP (no head), whose output is replaced for its input."""

    layer: int
    site: Literal["q", "k", "v", "mlp_out"]
    head: int | None = None

    @property
    def node(self) -> Node:
        return Mlp(self.layer) if self.head is None else HeadId(self.layer, self.head)

    def __str__(self) -> str:
        return str(self.node) if self.head is None else f"{self.node}.{self.site}"


class Frozen:
    """Propagates the changes of senders through the layers with all other heads frozen, for some prompts.
    With ``mlps="frozen"``, a change travels along the residual stream only."""

    def __init__(
        self, base: HeadCache, rows: slice | Int[Tensor, " row"], where: Int[Tensor, "prompt position"], mlps: MLPs
    ) -> None:
        self.base, self.rows, self.where, self.mlps = base, rows, where, mlps
        self.model = base.need_model()
        self._ready: dict[int, Blocks] = {}
        self._row = torch.arange(len(where), device=where.device)[:, None]

    def inputs(
        self, senders: Sequence[Sender], receivers: Sequence[Receiver]
    ) -> dict[Receiver, Float[Tensor, "sender prompt position d"]]:
        """What each receiver gets if one sender at a time changes, for the senders before it, in order of layers."""
        return self._carry(senders, receivers, max(receiver.layer for receiver in receivers) + 1)[0]

    @torch.no_grad()
    def final(self, senders: Sequence[Sender]) -> Float[Tensor, "sender prompt position d_model"]:
        """The final states if one sender changes at a time, in order of layers."""
        stream = self._carry(senders, (), self.model.n_layers)[1]
        return self.model.backend.finish(stream.flatten(0, 1)).view(stream.shape)

    @torch.no_grad()
    def _carry(
        self, senders: Sequence[Sender], receivers: Sequence[Receiver], end: int
    ) -> tuple[dict[Receiver, Tensor], Tensor]:
        carry = self._carry_whole if self.mlps == "recomputed" else self._carry_change
        return carry(senders, receivers, min(head.layer for head, _ in senders), end)

    def _carry_whole(
        self, senders: Sequence[Sender], receivers: Sequence[Receiver], begin: int, end: int
    ) -> tuple[dict[Receiver, Tensor], Tensor]:
        """Run every sender's residual stream through the blocks, MLPs included."""
        inputs: dict[Receiver, Tensor] = {}
        stream = self._residual(begin)[None][:0]
        for layer in range(begin, end):
            inputs |= self._head_inputs(layer, stream, receivers)
            heads = _joining(senders, layer)
            residual, attention = self._residual(layer)[None], self._attention(layer)[None]
            if len(stream) or heads:
                there = attention.expand(len(stream), *attention.shape[1:])
                there = torch.cat([there, attention + self._difference(heads)]) if heads else there
                stream = torch.cat([stream, residual.expand(len(heads), *residual.shape[1:])])
                stream, mlp_out = self._block(layer, stream, there, see_mlp=Receiver(layer, "mlp_out") in receivers)
                if mlp_out is not None:
                    inputs[Receiver(layer, "mlp_out")] = mlp_out
        return inputs, stream

    def _carry_change(
        self, senders: Sequence[Sender], receivers: Sequence[Receiver], begin: int, end: int
    ) -> tuple[dict[Receiver, Tensor], Tensor]:
        """With the MLPs frozen too, a sender's change stays the same in later layers, so their blocks are skipped."""
        inputs: dict[Receiver, Tensor] = {}
        after = self._residual(begin)
        change = after[None][:0]
        for layer in range(begin, end):
            residual = self._residual(layer)
            inputs |= self._head_inputs(layer, residual + change, receivers)
            heads = _joining(senders, layer)
            here = Receiver(layer, "mlp_out") in receivers
            if not heads and not here and layer < end - 1:
                continue
            attention = self._attention(layer)
            after, mlp_out = self._block(layer, residual[None], attention[None], see_mlp=True)
            changed: list[Tensor] = []
            new: list[Tensor] = []
            if heads:
                made = attention + self._difference(heads)
                stream = residual.expand(made.shape)
                out, seen = self._block(layer, stream, made, see_mlp=here, give_mlp=mlp_out)
                changed = [out - after]
                new = [] if seen is None else [seen]
            if here and len(change):
                _, seen = self._block(layer, residual + change, attention.expand(change.shape), see_mlp=True)
                new = new if seen is None else [seen, *new]
            if here and new:
                inputs[Receiver(layer, "mlp_out")] = torch.cat(new)
            change, after = torch.cat([change, *changed]), after[0]
        return inputs, after + change

    def _block(
        self,
        layer: int,
        stream: Float[Tensor, "sender prompt position d_model"],
        attention: Float[Tensor, "sender prompt position d_model"],
        *,
        see_mlp: bool,
        give_mlp: Float[Tensor, "1 prompt position d_model"] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """A block's output if its heads write ``attention``, and its own MLP's, which ``give_mlp`` replaces."""
        backend, rows = self.model.backend, stream.flatten(0, 1)
        seen: list[Tensor] = []

        def mlp(value: Tensor, hook: Any) -> Tensor | None:
            seen.append(value.clone())
            return None if give_mlp is None else give_mlp.expand(stream.shape).reshape(value.shape)

        hooks: list[Hook] = []
        if backend.d_mlp and (see_mlp or give_mlp is not None):
            hooks.append((self.model.hook_name("mlp_out", layer), mlp))
        block = partial(backend.blocks_between_heads(len(rows), self.where.shape[1]), layer, rows)
        run = partial(backend.with_attention, layer, attention.reshape(rows.shape), block)
        out = backend.under(hooks, run)
        return out.view(stream.shape), seen[0].view(stream.shape) if seen else None

    def _head_inputs(self, layer: int, stream: Tensor, receivers: Sequence[Receiver]) -> dict[Receiver, Tensor]:
        """The q, k or v that the receivers of a layer compute from a residual stream."""
        wanted = [r for r in receivers if r.layer == layer and r.head is not None]
        if not wanted or not len(stream):
            return {}
        seen: dict[str, Tensor] = {}

        def stop(value: Tensor, hook: Any) -> None:
            raise Stopped

        def note(site: str) -> Any:
            def hook_fn(value: Tensor, hook: Any) -> None:
                seen[site] = value.clone()

            return hook_fn

        hooks: list[Hook] = [
            (self.model.hook_name(site, layer), note(site)) for site in sorted({r.site for r in wanted})
        ]
        rows = stream.flatten(0, 1)
        block = partial(self._blocks(len(rows)), layer, rows)
        hooks.append((self.model.hook_name("z", layer), stop))
        self.model.backend.under(hooks, partial(until_stopped, layer, block))
        inputs = {}
        for receiver in wanted:
            value = seen[receiver.site]
            stored = value[:, :, kv_head(receiver.head or 0, self.model.n_heads, value.shape[2])]
            inputs[receiver] = stored.view(*stream.shape[:3], -1)
        return inputs

    def _blocks(self, rows: int) -> Blocks:
        if rows not in self._ready:
            self._ready[rows] = self.model.backend.blocks_for(rows, self.where.shape[1])
        return self._ready[rows]

    def take(self, values: Float[Tensor, "all_prompts pos *rest"]) -> Float[Tensor, "prompt position *rest"]:
        """The values of these prompts at the positions that are computed."""
        return values[self.rows][self._row, self.where]

    def _residual(self, layer: int) -> Float[Tensor, "prompt position d_model"]:
        return self.take(self.base.stores["resid_pre"][layer])

    def _attention(self, layer: int) -> Float[Tensor, "prompt position d_model"]:
        """The attention output of a layer in the base run, b_O included."""
        return self.model.attention_out(layer, self.take(self.base.stores["z"][layer].transpose(1, 2)))

    def _difference(self, senders: Sequence[Sender]) -> Float[Tensor, "sender prompt position d_model"]:
        """How much the new z of each sender of a layer changes what it adds to the residual stream."""
        layer, heads = senders[0][0].layer, [head.head for head, _ in senders]
        stored, weight = self.take(self.base.stores["z"][layer].transpose(1, 2)), self.model.W_O[layer]
        change = torch.stack([new for _, new in senders]) - torch.stack([stored[:, :, head] for head in heads])
        return torch.stack([each @ weight[head] for each, head in zip(change, heads, strict=True)])


def _joining(senders: Sequence[Sender], layer: int) -> list[Sender]:
    """The senders of a layer."""
    return [(head, new) for head, new in senders if head.layer == layer]
