"""Slow and plain: the score of every edge, from TransformerLens' own runs with hooks and torch's autograd.

A receiver reads the residual stream plus eps times the change of a sender's output; the score is the derivative of the
metric with respect to eps, at 0. A run has one row, and one eps, for each sender.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mechheads as mh
from support import oracles

Hooks = list[tuple[str, Callable[..., Any]]]


def resid(layer: int, side: str = "pre") -> str:
    return f"blocks.{layer}.hook_resid_{side}"


def give(value: Tensor) -> Callable[..., Tensor]:
    return lambda old, hook: value


@dataclass(eq=False)
class PlainEdges:
    """One pair of prompts.

    Attributes:
        ids, other: the tokens of the clean and of the corrupted prompt [1, pos].
        measure: the metric of logits [row, pos, d_vocab], one value a row.
    """

    model: mh.Model
    ids: Tensor
    other: Tensor
    measure: Callable[[Tensor], Tensor]

    def scores(self) -> dict[tuple[str, str], float]:
        """The score of every edge, by the names of its sender and receiver."""
        self.here, self.there = (oracles.activations(self.model, ids) for ids in (self.ids, self.other))
        changes = self.changes()
        self.delta, found = torch.cat(list(changes.values())), {}

        def add(receiver: str, slopes: Tensor, senders: Collection[str]) -> None:
            found.update({(s, receiver): float(x) for s, x in zip(changes, slopes, strict=True) if s in senders})

        for layer in range(self.model.n_layers):
            earlier = [f"L{each}{node}" for each in range(layer) for node in self.nodes] + ["input"]
            heads = [] if self.model.parallel_mlps else [f"L{layer}{node}" for node in self.nodes[:-1]]
            for site in ("q", "k", "v"):
                for head, slopes in enumerate(self.at_reads(layer, site)):
                    add(f"L{layer}H{head}.{site}", slopes, earlier)
            add(f"L{layer}.mlp", self.at_mlp(layer), earlier + heads)
        add("logits", self.at_logits(), changes)
        return found

    @property
    def nodes(self) -> list[str]:
        return [*(f"H{head}" for head in range(self.model.n_heads)), ".mlp"]

    def run(self, hooks: Hooks, rows: int, seen: str | None = None) -> Tensor:
        """The logits of a run with hooks, or the value at another hook."""
        kept: list[Tensor] = []
        if seen is not None:
            hooks = [*hooks, (seen, lambda value, hook: kept.append(value))]
        logits = self.model.model.run_with_hooks(self.ids.repeat(rows, 1), fwd_hooks=hooks)
        return logits if seen is None else kept[0]

    def changes(self) -> dict[str, Tensor]:
        """What each sender adds to the residual stream in the corrupted run more than in the clean one."""
        ends: list[Tensor] = []
        for ids in (self.ids, self.other):
            self.model.model.run_with_hooks(ids, fwd_hooks=[(resid(0), lambda value, hook: ends.append(value))])
        changes = {"input": (ends[1] - ends[0]).detach()}
        for layer in range(self.model.n_layers):
            for head in range(self.model.n_heads):
                changes[f"L{layer}H{head}"] = self.written(layer, oracles.name(layer, "z"), head)
            changes[f"L{layer}.mlp"] = self.written(layer, oracles.mlp(layer), None)
        return changes

    def written(self, layer: int, name: str, head: int | None) -> Tensor:
        """The derivative of the residual stream after a layer, with its MLP's output fixed unless it is the sender."""
        old, new = self.here[name], self.there[name]
        if head is not None:
            new = torch.cat([old[:, :, :head], new[:, :, head : head + 1], old[:, :, head + 1 :]], 2)

        def after(t: Tensor) -> Tensor:
            fixed: Hooks = [(oracles.mlp(layer), give(self.here[oracles.mlp(layer)]))]
            return self.run([*fixed, (name, lambda value, hook: old + t * (new - old))], 1, resid(layer, "post"))

        one = torch.ones((), dtype=old.dtype)
        return torch.autograd.functional.jvp(after, 0 * one, one)[1].detach()

    def eps(self) -> tuple[Tensor, Callable[..., Tensor]]:
        eps = torch.zeros(len(self.delta), dtype=self.delta.dtype, requires_grad=True)
        return eps, lambda value, hook: value + eps[:, None, None] * self.delta

    def slopes(self, eps: Tensor, hooks: Hooks) -> Tensor:
        logits = self.run(hooks, len(self.delta))
        return torch.autograd.grad(self.measure(logits).sum(), eps, retain_graph=True)[0]

    def at_reads(self, layer: int, site: str) -> list[Tensor]:
        """For each head, the slopes with the input of its site changed, for this head alone."""
        eps, changed = self.eps()
        name, z_name, n = oracles.name(layer, site), oracles.name(layer, "z"), len(self.delta)
        read = self.run([(resid(layer), changed)], n, name)
        z = self.run([(name, give(read))], n, z_name)

        def put(head: int) -> Callable[..., Tensor]:
            return lambda value, hook: torch.cat(
                [value[:, :, :head], z[:, :, head : head + 1], value[:, :, head + 1 :]], 2
            )

        return [self.slopes(eps, [(z_name, put(head))]) for head in range(self.model.n_heads)]

    def at_mlp(self, layer: int) -> Tensor:
        eps, changed = self.eps()
        z_name, n = oracles.name(layer, "z"), len(self.delta)
        fixed: Hooks = [(z_name, give(self.here[z_name].repeat(n, 1, 1, 1)))]
        out = self.run([(resid(layer), changed), *fixed], n, oracles.mlp(layer))
        return self.slopes(eps, [(oracles.mlp(layer), give(out))])

    def at_logits(self) -> Tensor:
        eps, changed = self.eps()
        return self.slopes(eps, [(resid(self.model.n_layers - 1, "post"), changed)])
