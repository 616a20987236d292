"""The one place where the units of a job are computed, here or by workers, and committed to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.dispatch import Batch, Values, by_workers, setup_of
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.memory import keep_freed_memory
from mechheads.engine.plan import Plan
from mechheads.engine.proved import prove_wave
from mechheads.engine.run import UnitRuns
from mechheads.heads import HeadId, in_order
from mechheads.ledger.key import same_but_for_rounding
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, name_of
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.scale.ray_cluster import Ready

Run = Callable[[Sequence[Any]], list[Float[Tensor, "unit prompt position d_model"]]]
"""The final states of units that go through the layers together: one entry, or several that are read of each unit."""
Read = Callable[[Sequence[Any], list[Float[Tensor, "unit prompt position d_model"]]], Values]
"""The values of units, from the units and their final states."""
_SMALL = 0.01
"""Values of this size are compared as closely as larger ones are."""
Take = Callable[[Sequence[Any], Values], object]
"""Gets the units of a batch and their values."""


@dataclass(frozen=True, eq=False)
class Work:
    """How units of a job, which pickle and hash, run to their final states, and how these are read.
    ``made_by`` makes the same work of the same job in another process, so it must pickle."""

    job: Job
    made_by: Callable[[Job], Work]
    run: Run
    read: Read
    _proved: list[bool] = field(default_factory=list)

    def compute(self, batch: Batch) -> Iterator[tuple[list[Any], Values]]:
        """The values of the units of a batch; if Ctrl-C stops it, those of the waves before too, unless they are
        stored: whole batches give the same bits when a sweep is resumed."""
        units: list[Any] = []
        carried: list[list[Tensor]] = []
        stopped = None
        try:
            for wave in batch.waves:
                carried.append(self.job.chunks.run(self.run, wave))
                units += wave
                if not self._proved:
                    prove_wave(self.job, self.run, wave, carried[-1])
                    self._proved.append(True)
        except KeyboardInterrupt as interrupt:
            stopped = interrupt
        if units and (stopped is None or self.job.ledger is None):
            yield units, self.read(units, [torch.cat(each) for each in zip(*carried, strict=True)])
        if stopped is not None:
            raise stopped


def effects(job: Job) -> Work:
    """The change of a job's metric under its intervention [prompt]."""
    return Work(job, effects, UnitRuns(job), job.evaluator.of_units)


@dataclass
class Finished:
    """The values of the units that were reached, and whether Ctrl-C stopped the work."""

    values: dict[Any, np.ndarray] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True)
class Measured:
    """The changes of a job's metric, in shares of the whole difference if the job normalises; NaN where not reached."""

    heads: Float[np.ndarray, "layer head *group place prompt"]
    interrupted: bool


def measure(work: Work, batches: list[Batch], *, groups: tuple[int, ...] = (), bar: str = "") -> Measured:
    """Measure heads at places, ``groups`` of numbers for each prompt, and warn of those without a value."""
    job, model = work.job, work.job.model
    scale = job.evaluator.distance() if job.spec.normalize else 1.0
    found = finish(work, batches, what=f"{bar}{len(job.measured)} heads")
    shape = (*groups, len(job.places), len(job.tokens))
    heads = np.full((model.n_layers, model.n_heads, *shape), np.nan)
    for head in set(job.heads) - set(job.measured):
        heads[head.layer, head.head] = np.nan if job.reading.takes(head, job.site) else 0
    reached, undefined = len(found.values), set[HeadId]()
    while found.values:  # each goes as it is copied, because for many prompts both together are large
        (head, place), change = found.values.popitem()
        heads[head.layer, head.head, ..., place, :] = change / scale
        if np.isnan(change).any():
            undefined.add(head)
    if found.interrupted:
        units = sum(len(batch.units) for batch in batches)
        warn(interrupted_after(f"{reached} of {units} units", "the rest are NaN"))
    _warn_of_undefined(job.spec.metric, undefined)
    return Measured(heads, found.interrupted)


def _warn_of_undefined(metric: Metric, heads: set[HeadId]) -> None:
    """Warn which heads have no score, because the metric was not finite for them."""
    if heads:
        shown = ", ".join(map(str, in_order(heads)[:5])) + (", ..." if len(heads) > 5 else "")
        warn(f"metric {name_of(metric)} gave values that are not finite for {shown}; their scores are NaN")


def finish(work: Work, batches: list[Batch], *, what: str) -> Finished:
    """Compute all units that are not in the job's ledger, and commit each batch as soon as it is computed."""
    job, found = work.job, Finished()
    batches = _own_part(batches, job.spec.limits.part)
    units = [unit for batch in batches for unit in batch.units]
    stored = {} if job.ledger is None else job.ledger.finished()
    for unit in units:
        if (values := stored.get(unit_key(unit, job.ledger_suffix))) is not None:
            found.values[unit] = values
    bar = Bar(
        total=sum(map(job.reading.cost_of, units)),
        initial=sum(map(job.reading.cost_of, found.values)),
        leave=False,
        desc=what,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )

    def take(units: Sequence[Any], values: Values) -> None:
        new = {unit: value for unit, value in zip(units, values, strict=True) if unit not in found.values}
        if job.ledger is not None:
            kept = job.ledger.commit({unit_key(unit, job.ledger_suffix): value for unit, value in new.items()})
            new = {unit: kept[unit_key(unit, job.ledger_suffix)] for unit in new}
        found.values |= new
        bar.update(sum(map(job.reading.cost_of, new)))

    left = [batch for batch in batches if not found.values.keys() >= set(batch.units)]
    with until_interrupted() as interrupts, bar:
        _repeat(work, batches, found.values)
        found.interrupted = compute(work, left, take)
    found.interrupted |= interrupts.interrupted
    return found


def _repeat(work: Work, batches: Sequence[Batch], stored: Mapping[Any, np.ndarray]) -> None:
    """Compute the two stored units furthest from 0 again: alone, and if that differs, in the batch of before."""
    job = work.job
    far = {unit: float(np.nanmax(np.abs(values), initial=0.0)) for unit, values in stored.items()}
    for unit in sorted(far, key=far.__getitem__, reverse=True)[:2]:
        (whole,) = (batch for batch in batches if unit in batch.units)
        for batch in (Batch(((unit,),)), whole):
            ((units, values),) = work.compute(batch)
            now = np.asarray(values[units.index(unit)])
            if same_but_for_rounding(now, stored[unit], far[unit] + _SMALL, job.model.backend):
                break
        else:
            off = float(np.abs(now - stored[unit]).max(initial=0.0))
            raise ValueError(
                f"store: {job.ledger and job.ledger.path} holds other numbers than are computed now: the values of "
                f"{unit_key(unit, job.ledger_suffix)} differ by up to {off:.3g}. Something has changed that the file "
                "does not know, such as a hook, a weight, or a global that a function reads; undo it, or give another "
                "path"
            )


def _own_part(batches: list[Batch], part: tuple[int, int] | None) -> list[Batch]:
    """The batches of this process's part: every so many of the whole's, so that parts give the bits of the whole."""
    if part is None:
        return batches
    number, count = part
    if number > len(batches):
        warn(
            f"part {number} of {count} computes nothing: the units make {len(batches)} batches, the smallest that can "
            "be computed alone"
        )
    return batches[number - 1 :: count]


def compute(work: Work, batches: Sequence[Batch], take: Take) -> bool:
    """Compute batches, here or by workers, and take their values as they come; whether Ctrl-C stopped the workers."""
    workers = work.job.spec.limits.workers
    if workers is None or not batches:
        keep_freed_memory()
        for batch in batches:
            for units, values in work.compute(batch):
                take(units, values)
        return False
    job = work.job
    setup = setup_of(job.model, _SentJob.of(work), job.runs.reading)
    return by_workers(workers, setup, batches, lambda index, values: take(batches[index].units, values))


def unit_key(unit: tuple[object, int], suffix: str) -> str:
    """The name of a unit in a ledger."""
    return f"{unit[0]} {unit[1]}{suffix}"


@dataclass(frozen=True)
class _SentJob:
    """A job on its way to a worker, and what is measured in it."""

    spec: Spec
    together: int
    plan: Plan
    made_by: Callable[[Job], Work]

    @classmethod
    def of(cls, work: Work) -> _SentJob:
        job = work.job
        spec = replace(job.spec, limits=job.spec.limits.in_one_process)
        return cls(spec, job.together, job.plan, work.made_by)

    def __call__(self, model: Model) -> Ready:
        """What computes batches with a worker's model."""
        job = replace(make_ready(model, self.spec), together=self.together, plan=self.plan)
        work = self.made_by(job)
        keep_freed_memory()

        def compute(batch: Batch) -> Values:
            ((_, values),) = work.compute(batch)
            return values

        return compute
