"""The one place where the units of a job are computed, here or by workers, and committed to the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mechheads.engine.batches import Batch, Cut, Values, Work, WorkFactory
from mechheads.engine.dispatch import Dispatch
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.same_model import SameModel, setup_of
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.workers.messages import Setup
from mechheads.workers.ray_cluster import pool_of

Take = Callable[[Sequence[Any], Values], object]
"""Gets the units of a batch and their values."""


@dataclass
class Finished:
    """The values of the units that were reached, and whether Ctrl-C stopped the work."""

    values: dict[Any, np.ndarray] = field(default_factory=dict)
    interrupted: bool = False


def finish(work: Work, *, what: str) -> Finished:
    """Compute all units of a job that are not in its ledger, and commit each batch as soon as it is computed.

    Args:
        what: what is measured, for the progress bar.
    """
    job, found = work.job, Finished()
    batches = _own_part(work.batches(), job.spec.limits.part)
    units = [unit for batch in batches for unit in batch.units]
    stored = {} if job.ledger is None else job.ledger.finished()
    for unit in units:
        if (values := stored.get(unit_key(job, unit))) is not None:
            found.values[unit] = values
    bar = Bar(
        total=sum(map(job.cost, units)),
        initial=sum(map(job.cost, found.values)),
        leave=False,
        desc=what,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )

    def take(units: Sequence[Any], values: Values) -> None:
        new = {unit: value for unit, value in zip(units, values, strict=True) if unit not in found.values}
        if job.ledger is not None:
            kept = job.ledger.commit({unit_key(job, unit): value for unit, value in new.items()})
            new = {unit: kept[unit_key(job, unit)] for unit in new}
        found.values |= new
        bar.update(sum(map(job.cost, new)))

    left = [batch for batch in batches if not found.values.keys() >= set(batch.units)]
    with until_interrupted() as interrupts, bar:
        found.interrupted = compute(work, left, take)
    found.interrupted |= interrupts.interrupted
    return found


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
    """Compute batches, here or by the workers of the job's limits, and take their values as they come.

    Returns:
        Whether Ctrl-C stopped the work after the batches that were in flight. In this process it is raised at once.
    """
    workers = work.job.spec.limits.workers
    if workers is None or not batches:
        for units, values in work.compute(batches):
            take(units, values)
        return False
    return Dispatch(pool_of(workers), _setup(work), Cut.of(work.job), work.job.chunks, take).run(batches)


def unit_key(job: Job, unit: tuple[object, int]) -> str:
    """The name of a unit in a ledger."""
    return f"{unit[0]} {unit[1]}{job.ledger_suffix}"


def _setup(work: Work) -> Setup:
    job = work.job
    spec = replace(job.spec, limits=job.spec.limits.in_one_process)
    return setup_of(job.model, _SentJob(spec, job.together, SameModel.of(job.model, job.runs.mark), work.factory))


@dataclass(frozen=True)
class _SentJob:
    """A job on its way to a worker, and what is measured in it."""

    spec: Spec
    together: int
    same: SameModel
    factory: WorkFactory

    def ready(self, model: Model) -> _ReadyJob:
        """The job on a worker's model.

        Raises:
            ValueError: if it is another model, or on another kind of device.
        """
        self.same.check(model)
        job = make_ready(model, self.spec)
        return _ReadyJob(self.factory(replace(job, together=self.together)))


class _ReadyJob:
    """Work on a worker; the part that was measured last is kept."""

    def __init__(self, whole: Work) -> None:
        self._whole = whole
        self._last: tuple[Cut, Work] | None = None

    @property
    def chunk(self) -> int | None:
        return self._whole.job.chunks.most

    def compute(self, cut: Cut, batch: Batch, chunk: int | None) -> Values:
        self._whole.job.chunks.at_most(chunk)
        if self._last is None or self._last[0] != cut:
            self._last = cut, self._whole.for_part(cut.apply(self._whole.job))
        ((_, values),) = self._last[1].compute([batch])
        return values
