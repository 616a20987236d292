"""Runs of circuits of edges: a receiver sees the circuit's own run through the edges inside, and the corrupted run
through all others.

The residual stream is a sum of what the senders write. So the input of a receiver is that of the corrupted run plus,
for each edge of the circuit, what its sender writes in the circuit more than in the corrupted run. The layers run in
order, and each notes these changes for the later ones. Receivers that read the same edges share an input, and heads
and MLPs that lead nowhere do not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
from mechheads.engine.memory import token_bytes, tokens_in_flight
from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import READS, EdgeGraph
from mechheads.patching.gradients import Path
from mechheads.runs.head_cache import HeadCache, states_at

Circuit = Bool[np.ndarray, "sender receiver"]
Streams = Float[Tensor, "input prompt pos d_model"]


class EdgeCircuits:
    """Computes the metric of circuits of edges.

    Args:
        job: the prepared corrupted run, with the clean run as its source.
        graph: the edges of the model, all of which write to the residual stream as they are.

    Attributes:
        full, empty: the metric of the clean run and of the corrupted run [prompt].
    """

    def __init__(self, job: Job, graph: EdgeGraph) -> None:
        self.job, self.graph, self.model = job, graph, job.model
        self._corrupted = job.base
        self._path = Path.between(job.base, job.clean, 1)
        self._evaluator = Evaluator(job.spec.metric, job.clean, job.base, job.spec.limits)
        self.full: Float[np.ndarray, " prompt"] = self._evaluator.base_value.cpu().numpy()
        self.empty: Float[np.ndarray, " prompt"] = self._measure(job.base.final_at(self._evaluator.at))

    @torch.no_grad()
    def values(
        self, circuits: Sequence[Circuit], done: Callable[[int], object] = lambda n: None
    ) -> Float[np.ndarray, "circuit prompt"]:
        """The metric of each circuit.

        Args:
            done: called with 1 after each circuit.
        """
        values = []
        for circuit in circuits:
            edges = self.graph.connected(circuit)
            if not edges.any():
                values.append(self.empty)
            elif edges.sum() == self.graph.n_edges:
                values.append(self.full)
            else:
                starts = range(0, len(self.job.tokens), step := self._rows())
                values.append(self._measure(torch.cat([self._final(edges, slice(at, at + step)) for at in starts])))
            done(1)
        return np.stack(values)

    def _measure(self, final: Float[Tensor, "prompt position d_model"]) -> Float[np.ndarray, " prompt"]:
        return self._evaluator.value(final[None])[0].cpu().numpy()

    def _final(self, edges: Circuit, rows: slice) -> Float[Tensor, "prompt position d_model"]:
        """The states of some prompts after the final norm, where the metric reads them."""
        graph, model, runs = self.graph, self.model, self._corrupted.stores
        changes = self._changes(rows)
        for layer in range(model.n_layers):
            heads, reads = graph.heads_of(layer), graph.reads_of(layer)
            block = SplitBlock(model, layer, self._rows_of_a_block(changes.shape[2]))
            stream = runs["resid_pre"][layer][rows]
            alive = np.asarray(edges[heads].any(1))
            if alive.any():
                inputs, taken = self._inputs(edges[: heads.start, reads], alive, stream, changes)
                change = block.z(inputs, taken).transpose(1, 2) - runs["z"][layer][rows]
                written = torch.einsum("bhpd,hdm->bhpm", change.to(changes.dtype), self._output(layer))
                changes[:, heads] = written * torch.from_numpy(alive).to(written)[:, None, None]
            if graph.mlps and edges[heads.stop].any():
                before = _received(edges[:, reads.stop, None], stream, changes)[0]
                change = block.mlp(before, self._attention(layer, rows)) - runs["mlp_out"][layer][rows]
                changes[:, heads.stop] = change.to(changes.dtype)
        last = _received(edges[:, -1:], self._end(rows), changes)[0]
        return states_at(model.backend.finish(last), self._evaluator.at[rows])

    def _changes(self, rows: slice) -> Float[Tensor, "prompt sender pos d_model"]:
        """Room for what each sender writes more than in the corrupted run; that of the embedding is filled in."""
        of_input = self._path.end[rows] - self._path.start[rows]
        wide = torch.promote_types(of_input.dtype, torch.float32)
        n, pos, width = of_input.shape
        changes = torch.zeros(n, len(self.graph.senders), pos, width, dtype=wide, device=of_input.device)
        changes[:, 0] = of_input
        return changes

    def _inputs(
        self,
        edges: Bool[np.ndarray, "sender read_of_head"],
        alive: Bool[np.ndarray, " head"],
        stream: Float[Tensor, "prompt pos d_model"],
        changes: Float[Tensor, "prompt sender pos d_model"],
    ) -> tuple[Float[Tensor, "input prompt pos d_model"], Tensor]:
        """The different inputs of a layer's heads, and which of them each query, key and value reads."""
        needed = np.tile(alive, len(READS))
        kinds, which = np.unique(edges[:, needed], axis=1, return_inverse=True)
        taken = np.zeros(len(needed), dtype=np.int64)
        taken[needed] = which.ravel()
        inputs = _received(kinds, stream, changes)
        return inputs, torch.from_numpy(taken).to(inputs.device).view(len(READS), -1)

    def _output(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        weight = self.model.W_O[layer]
        return weight.to(torch.promote_types(weight.dtype, torch.float32))

    def _attention(self, layer: int, rows: slice) -> Float[Tensor, "prompt pos d_model"]:
        """The attention output of a layer in the corrupted run, with its bias."""
        return self.model.attention_out(layer, self._corrupted.stores["z"][layer][rows].transpose(1, 2))

    def _end(self, rows: slice) -> Float[Tensor, "prompt pos d_model"]:
        """The residual stream after the last block in the corrupted run."""
        layer = self.model.n_layers - 1
        stream = self._corrupted.stores["resid_pre"][layer][rows]
        return self.model.backend.blocks_for(*stream.shape[:2])(layer, stream)

    def _rows_of_a_block(self, pos: int) -> int:
        limits = self.job.spec.limits
        return max(1, tokens_in_flight(self.model, limits.memory // 4, pos, limits) // pos)

    def _rows(self) -> int:
        """How many prompts run at once, so that their changes and inputs fit into memory beside the cached runs."""
        model, pos, limits = self.model, self.job.tokens.ids.shape[1], self.job.spec.limits
        runs = (self.job.base, self.job.clean)
        kept = sum(HeadCache.estimate(model, run.tokens, sites=tuple(run.stores)).total for run in runs)
        room = max(limits.memory // 4, limits.memory - kept)
        if (free := model.backend.devices.free) is not None:
            room = min(room, free // 2)
        inputs = len(READS) * model.n_heads
        states = 4 * model.d_model * (2 * len(self.graph.senders) + 3 * inputs) + token_bytes(model, pos)
        return max(1, room // (2 * states * pos))


def _received(
    edges: Bool[np.ndarray, "sender receiver"],
    stream: Float[Tensor, "prompt pos d_model"],
    changes: Float[Tensor, "prompt all_senders pos d_model"],
) -> Float[Tensor, "receiver prompt pos d_model"]:
    """The inputs of receivers: that of the corrupted run, and the changes along the edges of the circuit.

    Args:
        edges: for each receiver, which of the first senders reach it.
        stream: the residual stream of the corrupted run there.
    """
    inside = torch.from_numpy(edges.T.copy()).to(changes)
    change = (inside @ changes[:, : len(edges)].flatten(2)).transpose(0, 1)
    return (stream.flatten(1) + change).to(stream.dtype).unflatten(2, stream.shape[1:])


@dataclass(frozen=True, eq=False)
class SplitBlock:
    """A block in which the query, key and value of each head, and the MLP, each read an input of their own.

    The block runs once on all inputs, up to its queries, keys and values. Each head then takes its query from one
    input, its key from another and its value from a third. With grouped queries, several query heads share a key and a
    value. There, attention runs once for each member of a group, with the keys and values of that member.

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
