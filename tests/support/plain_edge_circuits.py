"""Slow and plain: a circuit of edges, one receiver at a time, from TransformerLens' own runs with hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

import mechheads as mh
from support import oracles
from support.plain_edges import give, resid

Edge = tuple[str, str]
"""The names of a sender and a receiver."""


def circuit_logits(model: mh.Model, ids: Tensor, other: Tensor, edges: Collection[Edge]) -> Tensor:
    """The logits [1, pos, d_vocab] of a circuit on one pair of prompts.

    A receiver reads the residual stream of the corrupted run, and for each of its edges what the sender writes in the
    circuit more than in the corrupted run.
    """

    def run(hooks: list[tuple[str, Callable[..., Any]]], seen: str, tokens: Tensor = other) -> Tensor:
        kept: list[Tensor] = []
        oracles.forward(model, tokens, [*hooks, (seen, lambda value, hook: kept.append(value.clone()))])
        return kept[0]

    def read(receiver: str, stream: Tensor) -> Tensor:
        return stream + sum(change for sender, change in changes.items() if (sender, receiver) in edges)

    corrupted = oracles.activations(model, other)
    changes = {"input": run([], resid(0), ids) - run([], resid(0))}
    for layer in range(model.n_layers):
        stream, z_name = run([], resid(layer)), oracles.name(layer, "z")
        of_heads: dict[str, Tensor] = {}
        for head in range(model.n_heads):
            own = []
            for site in ("q", "k", "v"):
                name = oracles.name(layer, site)
                own.append((name, give(run([(resid(layer), give(read(f"L{layer}H{head}.{site}", stream)))], name))))
            z = run(own, z_name)[:, :, head] - corrupted[z_name][:, :, head]
            of_heads[f"L{layer}H{head}"] = z @ model.W_O[layer][head]
        changes |= of_heads
        inside = read(f"L{layer}.mlp", stream)
        mlp = run([(resid(layer), give(inside)), (z_name, give(corrupted[z_name]))], oracles.mlp(layer))
        changes[f"L{layer}.mlp"] = mlp - corrupted[oracles.mlp(layer)]
    last = resid(model.n_layers - 1, "post")
    return oracles.forward(model, other, [(last, give(read("logits", run([], last))))])


def split_logits(model: mh.Model, ids: Tensor, other: Tensor, edges: Collection[Edge]) -> Tensor:
    """The same from one run of a HookedTransformer, whose hooks have an input for each head's q, k and v and each MLP.

    As EAP-IG does: the clean prompt runs, and each receiver gets the changes along the edges outside of the circuit.
    """
    hooked: Any = model.model
    hooked.set_ungroup_grouped_query_attention(True)
    hooked.set_use_split_qkv_input(True)
    hooked.set_use_hook_mlp_in(True)
    hooked.set_use_attn_result(True)
    changes: dict[str, Tensor] = {}

    def written(sender: str, there: Tensor) -> Callable[..., None]:
        def note(value: Tensor, hook: Any) -> None:
            changes[sender] = there - value

        return note

    def heads_written(layer: int, there: Tensor) -> Callable[..., None]:
        def note(value: Tensor, hook: Any) -> None:
            for head in range(model.n_heads):
                changes[f"L{layer}H{head}"] = (there - value)[:, :, head]

        return note

    def outside(receiver: str, before: Collection[str]) -> Tensor | float:
        return sum(changes[sender] for sender in before if (sender, receiver) not in edges)

    def one(receiver: str, before: Collection[str]) -> Callable[..., Tensor]:
        return lambda value, hook: value + outside(receiver, before)

    def each(layer: int, site: str, before: Collection[str]) -> Callable[..., Tensor]:
        def changed(value: Tensor, hook: Any) -> Tensor:
            parts = [value[:, :, head] + outside(f"L{layer}H{head}.{site}", before) for head in range(model.n_heads)]
            return torch.stack(parts, 2)

        return changed

    there = hooked.run_with_cache(other)[1]
    hooks: list[tuple[str, Callable[..., Any]]] = [("hook_embed", written("input", there["hook_embed"]))]
    before = ["input"]
    for layer in range(model.n_layers):
        of_heads = [f"L{layer}H{head}" for head in range(model.n_heads)]
        result, mlp = f"blocks.{layer}.attn.hook_result", f"blocks.{layer}.hook_mlp_out"
        hooks += [(f"blocks.{layer}.hook_{site}_input", each(layer, site, tuple(before))) for site in ("q", "k", "v")]
        hooks.append((result, heads_written(layer, there[result])))
        into_mlp = before if model.parallel_mlps else [*before, *of_heads]
        hooks.append((f"blocks.{layer}.hook_mlp_in", one(f"L{layer}.mlp", tuple(into_mlp))))
        hooks.append((mlp, written(f"L{layer}.mlp", there[mlp])))
        before += [*of_heads, f"L{layer}.mlp"]
    hooks.append((resid(model.n_layers - 1, "post"), one("logits", before)))
    with torch.no_grad():
        logits = hooked.run_with_hooks(ids, fwd_hooks=hooks)
    hooked.set_ungroup_grouped_query_attention(False)
    hooked.set_use_split_qkv_input(False)
    hooked.set_use_hook_mlp_in(False)
    hooked.set_use_attn_result(False)
    return logits
