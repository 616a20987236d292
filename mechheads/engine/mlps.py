"""MLPs beside the heads of a sweep: the output of one layer's MLP is changed at a time, in the same waves."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.batches import Batch, Values, WorkFactory
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
from mechheads.engine.memory import tokens_in_flight
from mechheads.engine.plan import Plan, batches_at_least, with_mlps
from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Window
from mechheads.engine.run import Measured, warn_of_undefined
from mechheads.engine.wavefront import Edit, Wave
from mechheads.engine.work import finish
from mechheads.heads import HeadId, Mlp, in_order
from mechheads.interventions.base import Context
from mechheads.interventions.basic import Patch
from mechheads.interventions.new_z import apply
from mechheads.messages.interrupted import interrupted_after
from mechheads.messages.warn import warn

MlpUnit = tuple[Mlp, int]
"""An MLP and the index of the place where it is changed."""


class MlpWork:
    """The change of a metric with the output of one MLP replaced."""

    def __init__(self, job: Job, evaluator: Evaluator | None = None) -> None:
        self.job, self.evaluator = job, evaluator or Evaluator.of(job)

    @property
    def factory(self) -> WorkFactory:
        return MlpWork

    def for_part(self, job: Job) -> MlpWork:
        return self

    def batches(self) -> list[Batch]:
        job, limits, n_layers = self.job, self.job.spec.limits, self.job.model.n_layers
        mlps = [Mlp(layer) for layer in range(n_layers)]
        made = []
        for place in range(len(job.places)):
            _, stack = self._at_once(place)
            stack = min(stack, math.ceil(len(job.places) * len(mlps) / batches_at_least(limits)))
            if job.ledger is not None:
                stack = job.ledger.remember(f"mlps {place}", stack)
            units = [(mlp, place) for mlp in mlps]
            made += [Batch((tuple(units[start : start + stack]),), (place,)) for start in range(0, len(units), stack)]
        return made

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[list[MlpUnit], Values]]:
        for batch in batches:
            yield batch.units, self.evaluator(self.job.chunks.run(self._finals, batch.units)[0])

    def plan(self) -> Plan:
        """The job's plan, whose time is known, with the MLPs beside its heads."""
        job, windows = self.job, [self._window(place) for place in range(len(self.job.places))]
        plan = with_mlps(job.plan, job.model, windows, len(self.batches()))
        return replace(plan, seconds=(plan.seconds or 0) + self.probe() * (plan.blocks - job.plan.blocks))

    def probe(self) -> float:
        """How many seconds a block takes for one MLP's copies of the prompts, from running the middle wave."""
        batches = self.batches()
        batch = batches[len(batches) // 2]
        start = time.perf_counter()
        list(self.compute([batch]))
        return (time.perf_counter() - start) / sum(map(self.job.cost, batch.units))

    def _window(self, place: int, rows: slice = slice(None)) -> Window:
        job = self.job
        return Window.from_start(job.starts[place][rows], job.at[rows], layout_of(job.model), job.tokens.ids.shape[1])

    def _at_once(self, place: int) -> tuple[int, int]:
        """How many prompts, and how many MLPs, go through the layers together."""
        job, width = self.job, self._window(place).width
        tokens = tokens_in_flight(job.model, job.spec.limits.memory // 4, job.plan.pos, job.spec.limits)
        rows = max(1, min(len(job.tokens), tokens // width))
        return rows, max(1, min(job.model.n_layers, tokens // (rows * width)))

    def _finals(self, units: Sequence[MlpUnit]) -> list[Float[Tensor, "unit prompt position d_model"]]:
        job, place, parts = self.job, units[0][1], []
        new = [new_output(job, mlp.layer, place) for mlp, _ in units]
        step, _ = self._at_once(place)
        for start in range(0, len(job.tokens), step):
            rows = slice(start, start + step)
            window = self._window(place, rows)
            copies = [
                [Edit(mlp.layer, "mlp_out", None, window.take(output[rows]))]
                for (mlp, _), output in zip(units, new, strict=True)
            ]
            parts.append(Wave(job.base, rows, window).run(copies))
        return [torch.cat(parts, dim=1)]


def new_output(job: Job, layer: int, place: int) -> Float[Tensor, "prompt pos d_model"]:
    """What an MLP gives under a job's intervention at a place.

    Raises:
        ValueError: if it is a patch of plain prompts.
    """
    mask, at, rule = job.tokens.mask, job.places[place].at, job.intervention
    old = job.base.stores["mlp_out"][layer]
    if isinstance(rule, Patch):
        if job.source is None:
            raise ValueError("Patch takes values from the source run of a pair; give mh.PromptPairs, not plain prompts")
        new = job.source.stores["mlp_out"][layer]
    else:
        new = apply(rule, old, Context(HeadId(layer, 0), job.base, job.source, mask))
    return torch.where((mask if at is None else mask & at)[..., None], new, old)


def run_mlps(work: MlpWork, heads: Measured, *, groups: int = 1) -> Float[np.ndarray, "layer group place prompt"]:
    """The change of the metric for every MLP; NaN for those that were not reached.

    Args:
        heads: what was measured of the heads before; if Ctrl-C stopped that, no MLP is measured. It is noted there if
            Ctrl-C stops this work.
        groups: how many values the work gives for each MLP and prompt.
    """
    job = work.job
    values = np.full((job.model.n_layers, groups, len(job.places), len(job.tokens)), np.nan)
    if heads.interrupted:
        return values
    found = finish(work, what=f"{job.model.n_layers} MLPs")
    for (mlp, place), change in found.values.items():
        values[mlp.layer, :, place] = change
    heads.interrupted = found.interrupted
    undefined = [mlp for (mlp, _), change in found.values.items() if np.isnan(change).any()]
    warn_of_undefined(job.spec.metric, list(in_order(set(undefined))))
    if found.interrupted:
        number = job.model.n_layers * len(job.places)
        warn(interrupted_after(f"{len(found.values)} of {number} MLPs", "the rest are NaN"))
    return values / (work.evaluator.distance() if job.spec.normalize else 1.0)
