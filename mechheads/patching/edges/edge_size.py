"""How the estimate of edges fits into memory: how many prompts at a time, and of how many layers the senders."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mechheads.engine.job import Job
from mechheads.engine.memory import logit_bytes, rows_together
from mechheads.limits import Limits
from mechheads.model.core import ModelCore
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.runs.head_cache import HeadCache
from mechheads.runs.memory import token_bytes


@dataclass(frozen=True)
class EdgeSize:
    """How the estimate of edges fits into memory.

    Attributes:
        rows: how many prompts run at once.
        layers: of how many layers the changes of senders are in memory together; fewer than all if one prompt does not
            fit otherwise.
        bytes: the memory that this takes besides the model, cached runs and scores included.
    """

    rows: int
    layers: int
    bytes: int

    @classmethod
    def of(cls, job: Job, graph: EdgeGraph) -> EdgeSize:
        """For the runs of a job."""
        model, limit = job.model, job.spec.limits.memory
        runs = [run for run in (job.base, job.source) if run is not None]
        kept = sum(HeadCache.estimate(model, run.tokens, sites=tuple(run.stores)).total for run in runs)
        if job.plan.on_disk:
            kept //= model.n_layers
        room = max(limit // 4, limit - kept)
        if (free := model.backend.devices.free) is not None:
            room = min(room, free // 2)
        prompts, pos = job.tokens.ids.shape
        found = cls.that_fits(model, graph, (prompts, pos, job.at.shape[1]), room, job.spec.limits)
        return replace(found, bytes=found.bytes + kept + 4 * graph.edges.size * len(job.tokens))

    @classmethod
    def that_fits(
        cls, model: ModelCore, graph: EdgeGraph, shape: tuple[int, int, int], room: int, limits: Limits
    ) -> EdgeSize:
        """As many prompts as fit with the changes of all senders, or one with those of as many layers as fit.

        Args:
            shape: the numbers of prompts, of positions, and of positions that the metric reads.
        """
        _, pos, n_read = shape
        sender, a_layer = 4 * model.d_model, graph.n_heads + graph.mlps
        gradients = sender * (2 * (3 * graph.n_heads + 1) + model.n_layers) + 3 * token_bytes(model, pos)
        a_token, logits = sender * len(graph.senders) + gradients, logit_bytes(model, 1, n_read, limits)
        layers = model.n_layers
        if a_token * pos + logits > room:
            layers = max(1, min(layers, ((room - logits) // pos - gradients - sender) // (sender * a_layer)))
            a_token = sender * (1 + layers * a_layer) + gradients
        a_row = a_token * pos + logits
        rows = rows_together(model, shape, a_row, room, limits)
        return cls(rows, layers, rows * a_row)
