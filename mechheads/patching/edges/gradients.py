"""The estimate of every edge on a batch of prompts: sender changes times gradients at the receivers' inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.job import Job
from mechheads.metrics.base import MetricContext, check_value, name_of, read_positions
from mechheads.model.backends.state import with_gradient
from mechheads.patching.edges.block_gradients import CutBlock
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.patching.edges.sender_changes import Point, sender_changes
from mechheads.patching.gradients import Path
from mechheads.runs.head_cache import HeadCache, states_at


@dataclass(frozen=True, eq=False)
class EdgeWork:
    """What the estimate of edges is computed from.

    Attributes:
        job: the prepared clean run.
        source: the corrupted run.
        graph: the edges.
        indirect: the layers whose output is not added to the residual stream as it is.
        path: the points between the embeddings of the two runs.
        integrate: whether gradients are taken at the points of the path instead of at the base run.
        at_once: of how many layers the changes of senders are in memory together. Gradients are computed again for
            each such part of the layers.
    """

    job: Job
    source: HeadCache
    graph: EdgeGraph
    indirect: Sequence[int]
    path: Path
    integrate: bool
    at_once: int

    @property
    def parts(self) -> list[range]:
        """The layers of senders whose changes are in memory together."""
        n = self.job.model.n_layers
        return [range(first, min(n, first + self.at_once)) for first in range(0, n, self.at_once)]

    @property
    def steps(self) -> int:
        """How often gradients pass back through a block."""
        return self.points * sum(self.job.model.n_layers - part.start for part in self.parts)

    @property
    def points(self) -> int:
        """At how many points gradients are taken."""
        return self.path.steps if self.integrate else 1

    def scores(self, rows: slice, done: Callable[[], object]) -> Float[Tensor, "prompt sender receiver"]:
        """The mean over points of change . gradient, summed over positions; 0 where there is no edge.

        Args:
            rows: the prompts.
            done: called after each layer of each point.

        Raises:
            ValueError: if the gradient of the metric is not finite.
        """
        model = self.job.model
        base = self._run(rows)
        with torch.no_grad():
            before = model.unembed(states_at(model.backend.finish(base.streams[-1]), self._at(rows)[0]))
        embedding = (self.path.end[rows] - self.path.start[rows]).float()
        scores = torch.zeros(len(embedding), *self.graph.edges.shape, device=embedding.device)
        for part in self.parts:
            changes = None
            for point in (self._run(rows, each) for each in self.path.points(rows)) if self.integrate else [base]:
                if changes is None or point.z:
                    changes = sender_changes(self.job.base, self.source, self.graph, rows, embedding, point, part)
                slope = self._slope(rows, point.streams[-1], before)
                self._add(scores[:, self.graph.senders_of(part)], changes, point.streams, slope, part, done)
        if not scores.isfinite().all():
            raise ValueError(
                f"metric {name_of(self.job.spec.metric)} has a gradient that is not finite at the unchanged run"
            )
        return scores / self.points

    def _add(
        self,
        scores: Float[Tensor, "prompt sender receiver"],
        changes: Float[Tensor, "prompt sender pos d_model"],
        streams: Sequence[Float[Tensor, "prompt pos d_model"]],
        slope: Float[Tensor, "prompt pos d_model"],
        part: range,
        done: Callable[[], object],
    ) -> None:
        """Add the estimates of the senders in some layers at one point, from the logits back to the first of these."""
        scores[:, :, -1:] += _along(changes, slope[:, None])
        for layer in reversed(range(part.start, self.job.model.n_layers)):
            slope = self._add_block(scores, changes, streams[layer], slope, part.start, layer)
            done()

    def _add_block(
        self,
        scores: Float[Tensor, "prompt sender receiver"],
        changes: Float[Tensor, "prompt sender pos d_model"],
        stream: Float[Tensor, "prompt pos d_model"],
        slope: Float[Tensor, "prompt pos d_model"],
        lowest: int,
        layer: int,
    ) -> Float[Tensor, "prompt pos d_model"]:
        """Add the estimates of edges into one block, and return the gradient before it.

        Args:
            lowest: the first layer of the senders.
        """
        graph, model = self.graph, self.job.model
        first, reads = graph.senders_of(range(lowest, model.n_layers)).start, graph.reads_of(layer)
        blocks = model.backend.blocks_for(*slope.shape[:2])
        found = CutBlock.run(model, blocks, layer, stream, graph.mlps).back(slope)
        if found.mlp is not None:
            n = graph.before_mlp(layer) - first
            scores[:, :n, reads.stop : reads.stop + 1] += _along(changes[:, :n], found.mlp[:, None])
        n = max(0, graph.before_heads(layer) - first)
        scores[:, :n, reads] += _along(changes[:, :n], found.heads)
        return found.before

    def seconds(self, rows: slice) -> float:
        """About how long the scores of some prompts take, from the time of a block in the middle."""
        layer, part, start = self.job.model.n_layers // 2, self.parts[0], time.perf_counter()
        base = self._run(rows)
        embedding = (self.path.end[rows] - self.path.start[rows]).float()
        changes = sender_changes(self.job.base, self.source, self.graph, rows, embedding, base, part)
        slope = torch.ones_like(base.streams[layer])
        between = time.perf_counter()
        scores = torch.zeros(*changes.shape[:2], len(self.graph.receivers), device=changes.device)
        self._add_block(scores, changes, base.streams[layer], slope, part.start, layer)
        once = (between - start) * len(self.parts) * (self.points if self.integrate else 1)
        return once + (time.perf_counter() - between) * self.steps

    def _at(self, rows: slice) -> tuple[Tensor, Tensor]:
        return read_positions(self.job.spec.metric, self.job.tokens.rows(rows))

    def _run(self, rows: slice, embedding: Float[Tensor, "prompt pos d_model"] | None = None) -> Point:
        """The base run, or a run from another embedding."""
        model, point = self.job.model, Point([], {})

        def start(value: Tensor, hook: Any) -> Tensor:
            point.streams.append(value if embedding is None else embedding)
            return point.streams[0]

        def note(value: Tensor, hook: Any, layer: int) -> None:
            point.z[layer] = value.clone()

        hooks: list[Any] = [(model.hook_name("resid_pre", 0), start)]
        hooks += [(model.hook_name("z", layer), partial(note, layer=layer)) for layer in self.indirect]
        model.backend.run(self.job.tokens.rows(rows).ids, hooks, streams=point.streams)
        return point

    def _slope(
        self, rows: slice, last: Float[Tensor, "prompt pos d_model"], before: Float[Tensor, "prompt position d_vocab"]
    ) -> Float[Tensor, "prompt pos d_model"]:
        """The gradient of the metric with respect to the residual stream after the last block."""
        model, metric, tokens = self.job.model, self.job.spec.metric, self.job.tokens.rows(rows)
        at, mask = self._at(rows)
        with with_gradient():
            last = last.detach().requires_grad_()
            logits = model.unembed(states_at(model.backend.finish(last), at))
            value = check_value(metric, metric(logits, MetricContext(before, tokens, mask)), len(tokens))
            return torch.autograd.grad(value.sum(), last)[0]


def _along(
    changes: Float[Tensor, "prompt sender pos d_model"], slopes: Float[Tensor, "prompt receiver pos d_model"]
) -> Float[Tensor, "prompt sender receiver"]:
    """change . gradient of every sender and receiver, summed over positions."""
    return changes.flatten(2) @ slopes.float().flatten(2).transpose(1, 2)
