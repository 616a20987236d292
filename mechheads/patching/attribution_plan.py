"""The cost of attribution, before it runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch

from mechheads.engine.job import Job, Spec, given, make_ready
from mechheads.interventions.basic import Patch
from mechheads.limits import current, show_bytes, show_seconds
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.block_by_block import BlockByBlock
from mechheads.patching.edges.attribution import ready_edges
from mechheads.patching.gradients import Size, check_gradient
from mechheads.patching.pairs import check_pairs
from mechheads.prompts.prompts import PromptPairs


@dataclass(frozen=True, repr=False)
class AttributionPlan:
    """The cost of an attribution.

    Attributes:
        prompts, pos: the number of prompts and of positions; ``rows``: how many prompts run at once.
        gradients: how many gradients are taken of each prompt.
        by_block: whether the graph of one block at a time is in memory, because that of all blocks does not fit for one
            prompt. This costs one more forward pass for each gradient.
        parts: into how many parts senders are cut, because their changes do not fit together for one prompt. Gradients
            of edges are computed again for each part. 1 for heads and MLPs.
        bytes: the most memory used at one time, besides the model.
        budget: the memory that was allowed; if ``bytes`` is larger, it cannot run with less.
        seconds: the estimated time.
    """

    prompts: int
    pos: int
    rows: int
    gradients: int
    by_block: bool
    parts: int
    bytes: int
    budget: int
    seconds: float

    def __repr__(self) -> str:
        how = "" if not self.by_block else ", with the graph of one block at a time"
        if self.parts > 1:
            how += f", {self.parts} parts of the senders one after the other"
        over = "" if self.bytes <= self.budget else f" (the least possible; the budget is {show_bytes(self.budget)})"
        return (
            f"{self.gradients} gradient{'s' * (self.gradients != 1)} of {self.prompts} "
            f"prompt{'s' * (self.prompts != 1)} of up to {self.pos} tokens, {self.rows} at a time{how}\n"
            f"memory {show_bytes(self.bytes)} besides the model{over}\nabout {show_seconds(self.seconds)}"
        )


@analysis
@torch.inference_mode(False)
def plan_attribution(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    nodes: Literal["heads", "all", "edges"] = "heads",
    metric: Metric | str = logit_diff,
    steps: int | None = None,
) -> AttributionPlan:
    """Estimate what attribution would cost, before running it.

    Runs the prompts once, and a gradient through one block in the middle.

    Args:
        nodes: ``"heads"``, or ``"all"`` for MLPs too, as in ``mh.patching.attribution_patch``; ``"edges"`` for
            ``mh.patching.attribute_edges``.
        pairs, metric, steps: as in these functions.

    Raises:
        ValueError: if an argument is not valid, for example a metric without a gradient.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> print(mh.patching.plan_attribution(model, pairs, steps=5))  # doctest: +ELLIPSIS
    5 gradients of 1 prompt of up to 5 tokens, 1 at a time
    memory ... besides the model
    about ...
    """
    check_known("nodes", nodes, ("heads", "all", "edges"))
    if steps is not None:
        check_at_least(1, steps=steps)
    if nodes == "edges":
        return _of_edges(model, pairs, metric, steps)
    model, asked, cached = given(model, pairs, "pairs")
    check_pairs(asked, "activation patching")
    spec = Spec(
        asked, Patch(), as_metric(metric), base="corrupted", limits=current().limits.in_one_process, nodes=nodes
    )
    job = make_ready(model, spec, runs=cached)
    check_gradient(spec.metric, job.tokens, model.d_vocab)
    size, gradients = Size.of(job, model.n_layers), steps or 1
    parts = math.ceil(len(job.tokens) / size.rows)
    whole, block = _times(job, size)
    forward = whole if size.by_block else 0.0
    seconds = job.seconds + parts * gradients * (model.n_layers * block + forward)
    prompts, pos = job.tokens.ids.shape
    memory = spec.limits.memory
    return AttributionPlan(prompts, pos, size.rows, gradients, size.by_block, 1, size.bytes, memory, seconds)


def _times(job: Job, size: Size) -> tuple[float, float]:
    """Seconds of a forward pass of some prompts, and of both passes through one block."""
    layer, rows = job.model.n_layers // 2, slice(0, size.rows)
    start = time.perf_counter()
    run = BlockByBlock.run(job.model, job.tokens.rows(rows).ids)
    between = time.perf_counter()
    run.back(torch.ones_like(run.streams[0]), range(layer, layer + 1), [("z", layer)])
    return between - start, time.perf_counter() - between


def _of_edges(
    model: Model | Job, pairs: PromptPairs | Job | None, metric: Metric | str, steps: int | None
) -> AttributionPlan:
    work, size = ready_edges(model, pairs, metric, steps)
    job = work.job
    parts = math.ceil(len(job.tokens) / size.rows)
    seconds = job.seconds + parts * work.seconds(slice(0, size.rows))
    prompts, pos = job.tokens.ids.shape
    memory = job.spec.limits.memory
    return AttributionPlan(prompts, pos, size.rows, work.points, True, len(work.parts), size.bytes, memory, seconds)
