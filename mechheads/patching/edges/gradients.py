"""The estimate of every edge on a batch of prompts: sender changes times gradients at the receivers' inputs.

The gradient at each input of a block comes from the gradient after it. A block runs on its own, with the outputs of
its heads and of its MLP cut off from what follows. The chain rule then joins the pieces, last to first, so that the
gradient at the input of a single head is known before it is added to the others. Inputs are taken before their norms,
whose derivative is part of the gradient.

With grouped queries, several query heads share a key and a value. The gradient is taken for one head of each group at
a time, so that each head has the gradient of its own use of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.job import Job
from mechheads.metrics.base import MetricContext, check_value, name_of, read_positions
from mechheads.model.backends.partial_block import Blocks
from mechheads.model.backends.state import with_gradient
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import READS, EdgeGraph
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
        graph, model = self.graph, self.job.model
        first = graph.senders_of(part).start
        scores[:, :, -1:] += _along(changes, slope[:, None])
        for layer in reversed(range(part.start, model.n_layers)):
            reads, blocks = graph.reads_of(layer), model.backend.blocks_for(*slope.shape[:2])
            found = CutBlock.run(model, blocks, layer, streams[layer], graph.mlps).back(slope)
            if found.mlp is not None:
                n = graph.before_mlp(layer) - first
                scores[:, :n, reads.stop : reads.stop + 1] += _along(changes[:, :n], found.mlp[:, None])
            n = max(0, graph.before_heads(layer) - first)
            scores[:, :n, reads] += _along(changes[:, :n], found.heads)
            slope = found.before
            done()

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


@dataclass(frozen=True, eq=False)
class BlockGradients:
    """The gradients at the inputs of a block.

    Attributes:
        heads: at the q, k and v input of each head, in this order.
        mlp: at the MLP's input; None if there is none.
        before: at the residual stream before the block.
    """

    heads: Float[Tensor, "prompt input pos d_model"]
    mlp: Float[Tensor, "prompt pos d_model"] | None
    before: Float[Tensor, "prompt pos d_model"]


@dataclass(frozen=True, eq=False)
class CutBlock:
    """A block that has run, in pieces.

    Attributes:
        before, after: the residual stream.
        reads: q of each head, and k and v of each key/value head.
        z, mlp: the outputs of the heads and of the MLP, which depend on ``before``.
        z_cut, mlp_cut: the same values, on which ``after`` depends.
    """

    before: Float[Tensor, "prompt pos d_model"]
    reads: tuple[Float[Tensor, "prompt pos some d_head"], ...]
    z: Float[Tensor, "prompt pos head d_head"]
    z_cut: Float[Tensor, "prompt pos head d_head"]
    mlp: Float[Tensor, "prompt pos d_model"] | None
    mlp_cut: Float[Tensor, "prompt pos d_model"] | None
    after: Float[Tensor, "prompt pos d_model"]

    @classmethod
    def run(
        cls, model: ModelCore, blocks: Blocks, layer: int, residual: Float[Tensor, "prompt pos d_model"], mlps: bool
    ) -> CutBlock:
        """Run a block on the residual stream before it.

        Args:
            mlps: whether the block has an MLP.
        """
        seen: dict[str, Tensor] = {}
        cut: dict[str, Tensor] = {}

        def note(value: Tensor, hook: Any, site: str) -> Tensor:
            seen[site] = value
            return value

        def sever(value: Tensor, hook: Any, site: str) -> Tensor:
            seen[site], cut[site] = value, value.detach().requires_grad_()
            return cut[site]

        outputs = ("z", "mlp_out") if mlps else ("z",)
        hooks = [(model.hook_name(site, layer), partial(note, site=site)) for site in READS]
        hooks += [(model.hook_name(site, layer), partial(sever, site=site)) for site in outputs]
        before = residual.detach().requires_grad_()
        with with_gradient():
            after = model.backend.under(hooks, partial(blocks, layer, before))
        reads = tuple(seen[site] for site in READS)
        return cls(before, reads, seen["z"], cut["z"], seen.get("mlp_out"), cut.get("mlp_out"), after)

    def back(self, slope: Float[Tensor, "prompt pos d_model"]) -> BlockGradients:
        """The gradients at the inputs.

        Args:
            slope: the gradient after the block.
        """
        slope = slope.to(self.after.dtype)
        to_z, of_mlp, before = self._grad(self.after, self.z_cut, slope), None, slope
        if self.mlp is not None and self.mlp_cut is not None:
            to_mlp = self._grad(self.after, self.mlp_cut, slope)
            of_mlp, through = torch.autograd.grad(
                self.mlp, [self.before, self.z_cut], to_mlp, retain_graph=True, allow_unused=True
            )
            before = before + of_mlp
            to_z = to_z if through is None else to_z + through
        heads = torch.empty(
            (len(slope), len(READS), self.z.shape[2], *slope.shape[1:]), dtype=torch.float32, device=slope.device
        )
        for read, head, gradient in self._of_heads(to_z):
            heads[:, read, head] = gradient
            before = before + gradient
        return BlockGradients(heads.flatten(1, 2), of_mlp, before)

    def _of_heads(
        self, to_z: Float[Tensor, "prompt pos head d_head"]
    ) -> Iterator[tuple[int, int, Float[Tensor, "prompt pos d_model"]]]:
        """The number of each input, its head, and the gradient there."""
        n_kv = self.reads[1].shape[2]
        group = self.z.shape[2] // n_kv
        for member in range(group):
            some = torch.zeros_like(to_z)
            some[:, :, member::group] = to_z[:, :, member::group]
            slopes = torch.autograd.grad(self.z, self.reads, some, retain_graph=True)
            for kv in range(n_kv):
                head = kv * group + member
                for read, at in enumerate((head, kv, kv)):
                    only = torch.zeros_like(slopes[read])
                    only[:, :, at] = slopes[read][:, :, at]
                    yield read, head, self._grad(self.reads[read], self.before, only)

    @staticmethod
    def _grad(value: Tensor, at: Tensor, slope: Tensor) -> Tensor:
        return torch.autograd.grad(value, at, slope, retain_graph=True)[0]
