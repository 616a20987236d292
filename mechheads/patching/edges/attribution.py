"""Edge attribution patching: an estimate of path patching for every edge at once.

| paper | here |
|---|---|
| nodes u and v, with v after u | senders and receivers; q, k and v of a head are receivers of their own |
| (z'_u - z_u) . grad_v L (Hanna et al. 2024, equation 2) | ``score``, summed over positions |
| EAP-IG, equation 4 | ``steps``, points between the embeddings of the two runs |

The clean run is the base, and senders change to their output in the corrupted run. Gradients at the inputs of single
heads come from blocks that run in pieces (``gradients``), so neither split inputs nor a graph through all layers
is needed. Memory grows with senders x d_model for each token, and prompts run in parts that fit.

``transformer_lens.tools.analysis.attribution_patch`` (4.3) gives the same numbers for edges, and the tests compare ours
with it. It is not used here because it takes no grouped queries, no norms after attention and no points between the
runs, and pairs of one length only, one by one, without an interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Job, Spec, given, make_ready
from mechheads.engine.memory import logit_bytes, rows_together
from mechheads.interventions.basic import Patch
from mechheads.limits import Limits, current, show_bytes
from mechheads.messages.arguments import Positive
from mechheads.metrics.base import Metric, MetricInfo, name_of
from mechheads.metrics.basic import as_metric_of_logits, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.core import ModelCore
from mechheads.model.model import Model
from mechheads.patching.edges.edge_scores import EdgeScores
from mechheads.patching.edges.gradients import EdgeWork
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.patching.edges.sender_changes import find_indirect
from mechheads.patching.gradients import Path, check_gradient, warn_of_memory
from mechheads.patching.pairs import check_pairs
from mechheads.progress import Bar
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import clustered_interval
from mechheads.runs.head_cache import HeadCache, token_bytes


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
        a_token, logits = sender * len(graph.senders) + gradients, logit_bytes(1, n_read * model.d_vocab, limits)
        layers = model.n_layers
        if a_token * pos + logits > room:
            layers = max(1, min(layers, ((room - logits) // pos - gradients - sender) // (sender * a_layer)))
            a_token = sender * (1 + layers * a_layer) + gradients
        a_row = a_token * pos + logits
        rows = rows_together(model, shape, a_row, room, limits)
        return cls(rows, layers, rows * a_row)


@analysis
@torch.inference_mode(False)
def attribute_edges(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    metric: Metric | str = logit_diff,
    steps: Positive | None = None,
    by_prompt: bool = False,
) -> EdgeScores:
    """Estimate what every edge does, from one forward and one backward pass, or a few.

    An edge leads from what writes to the residual stream (the embedding, a head, an MLP) to what reads it: the query,
    key or value input of a head, the input of an MLP, or the logits. Its score estimates what the metric of the clean
    run changes by if the receiver alone sees the sender's output of the corrupted run: (change of the output) .
    (gradient at the receiver's input), summed over positions. A negative score means that the edge supports the answer.

    The gradient is that at the receiver's input before its norm, so the norm is part of it. With grouped queries, each
    head has edges of its own to the key and the value that it shares. All edges out of a head add up to its estimate by
    ``mh.patching.attribution_patch(..., direction="noising")``. For models with a norm or a factor after attention
    (Gemma 2 and 3, Granite), the change of a head's output passes through the derivative of that norm or factor.

    Args:
        pairs: the two sides must be equally long.
        metric: a metric with a gradient at the clean run, as in ``mh.patching.attribution_patch``.
        steps: the number of points between the embeddings of the two runs whose gradients are averaged (EAP-IG), for
            effects that saturate; ``None`` for the gradient at the clean run. The points are the middles of equal
            parts, (k - 1/2) / steps of the way. The cost is that of ``steps`` gradients.
        by_prompt: keep the scores of each prompt too, 4 bytes for each sender, receiver and prompt.

    Returns:
        A score for every edge, with intervals over clusters of prompts, in the metric's unit.

    Raises:
        ValueError: if the pairs do not align, the metric has no gradient, an argument is not valid, the scores do not
            fit into the budget, or the model's blocks do more to the residual stream than add to it.

    Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery" (arXiv 2310.10348); Hanna et al.
    2024, "Have Faith in Faithfulness" (EAP-IG, arXiv 2403.17806), equations 2 and 4.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.attribute_edges(model, pairs)
    >>> found.top(1)[["sender", "receiver"]].values.tolist()
    [['L23H4', 'logits']]
    """
    work, size = ready_edges(model, pairs, metric, steps)
    job, graph, measured = work.job, work.graph, work.job.spec.metric
    warn_of_answers(job)
    warn_of_memory(size.bytes, job.spec.limits)
    values = _measure(work, size.rows)
    low, high = _intervals(graph, values, job)
    about = make_provenance(
        job.model,
        metric=name_of(measured),
        prompts=job,
        n_prompts=len(job.tokens),
        intervention=repr(job.intervention),
        base="clean",
        steps=steps,
    )
    return EdgeScores(
        graph.senders,
        graph.receivers,
        values.mean(-1, dtype=np.float64),
        low,
        high,
        values if by_prompt else None,
        "edge attribution, noising" + (f", {steps} steps" if steps else ""),
        MetricInfo.of(measured).unit,
        about,
    )


def ready_edges(
    model: Model | Job, pairs: PromptPairs | Job | None, metric: Metric | str, steps: int | None
) -> tuple[EdgeWork, EdgeSize]:
    """What the estimate of edges is computed from, and how it fits into memory.

    Raises:
        ValueError: as ``attribute_edges``.
    """
    model, asked, cached = given(model, pairs, "pairs")
    check_pairs(asked, "edge attribution patching")
    measured, limits = as_metric_of_logits(metric, "mh.patching.attribute_edges", "mh.path_patch"), current().limits
    graph, indirect = EdgeGraph.of(model), find_indirect(model)
    runs = CachedRuns(model, asked) if cached is None else cached
    tokens = runs.sides("clean")[0]
    check_gradient(measured, tokens, model.d_vocab)
    _check_room(graph, len(tokens), limits)
    nodes = "all" if graph.mlps else "heads"
    job = make_ready(model, Spec(asked, Patch(), measured, base="clean", limits=limits, nodes=nodes), runs=runs)
    if (source := job.source) is None:
        raise RuntimeError("pairs have two runs")
    path = Path.between(job.base, source, steps or 1)
    size = EdgeSize.of(job, graph)
    return EdgeWork(job, source, graph, indirect, path, integrate=steps is not None, at_once=size.layers), size


def _measure(work: EdgeWork, rows: int) -> Float[np.ndarray, "sender receiver prompt"]:
    """The score of every edge and prompt; NaN where there is no edge."""
    job, edges = work.job, work.graph.edges
    values = np.full((*edges.shape, len(job.tokens)), np.nan, dtype=np.float32)
    starts = range(0, len(job.tokens), rows)
    with Bar(total=len(starts) * work.steps, desc="edges", leave=False) as bar:
        for start in starts:
            part = slice(start, start + rows)
            values[..., part] = work.scores(part, bar.update).permute(1, 2, 0).cpu().numpy()
    if not values[edges].any():
        raise ValueError(
            f"metric {name_of(job.spec.metric)} has a gradient of 0 at the unchanged run; use mh.logit_diff, "
            "mh.log_prob or another metric that has one"
        )
    values[~edges] = np.nan
    return values


def _intervals(
    graph: EdgeGraph, values: Float[np.ndarray, "sender receiver prompt"], job: Job
) -> tuple[Float[np.ndarray, "sender receiver"], Float[np.ndarray, "sender receiver"]]:
    """The ends of each edge's interval, receiver by receiver to save memory."""
    low, high = (np.full(graph.edges.shape, np.nan) for _ in range(2))
    for receiver, before in enumerate(graph.edges.sum(0).tolist()):
        here = slice(0, before), receiver
        low[here], high[here] = clustered_interval(values[here], job.tokens.cluster)
    return low, high


def _check_room(graph: EdgeGraph, prompts: int, limits: Limits) -> None:
    """Check that the scores of all prompts fit into memory.

    Raises:
        ValueError: if they do not.
    """
    needed = 4 * graph.edges.size * prompts
    if needed > limits.memory:
        raise ValueError(
            f"budget is {show_bytes(limits.memory)}, but the scores of {graph.n_edges} edges for {prompts} prompts "
            f"take {show_bytes(needed)}; give fewer prompts or a larger budget"
        )
