"""Running a job, wave by wave, to the final states of every unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.batches import Batch, Values, WorkFactory
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Unit
from mechheads.engine.memory import keep_freed_memory
from mechheads.engine.packing import Packed, shared_start
from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Rows, Window
from mechheads.engine.wavefront import Edit, Wave
from mechheads.engine.work import finish
from mechheads.heads import HeadId, Node
from mechheads.interventions.base import site_of
from mechheads.interventions.new_z import Altered, altered_z, changed_z
from mechheads.messages.interrupted import interrupted_after
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, name_of
from mechheads.runs.sites import KEY_SITES


@dataclass
class Measured:
    """What a sweep has measured so far.

    Attributes:
        values: metric(changed) - metric(base) on the job's prompts; NaN for units that were not reached. Paths have an
            axis for the groups of receivers.
        reached: the units that were reached.
        interrupted: whether Ctrl-C stopped the sweep.
    """

    values: Float[np.ndarray, "layer head *group place row"]
    reached: set[Unit] = field(default_factory=set)
    interrupted: bool = False

    @property
    def undefined(self) -> list[HeadId]:
        """Heads for which the metric was not finite."""
        return sorted(
            {head for head, at in self.reached if np.isnan(self.values[head.layer, head.head, ..., at, :]).any()}
        )

    def add(self, unit: Unit, change: Float[np.ndarray, " prompt"]) -> None:
        self.values[unit[0].layer, unit[0].head, unit[1]] = change
        self.reached.add(unit)


@dataclass(frozen=True, eq=False)
class SweepWork:
    """The change of a metric under a job's intervention.

    Attributes:
        altering: the new z of the whole job's heads.
    """

    job: Job
    evaluator: Evaluator
    altering: Altering

    @classmethod
    def of(cls, job: Job, evaluator: Evaluator | None = None) -> SweepWork:
        """The work of a whole job; the evaluator is made if there is none."""
        return cls(job, evaluator or Evaluator.of(job), Altering(job))

    @property
    def factory(self) -> WorkFactory:
        return SweepWork.of

    def for_part(self, job: Job) -> SweepWork:
        return replace(self, job=job)

    def batches(self) -> list[Batch]:
        return batches(self.job)

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[list[Unit], Values]]:
        for units, final in finals(self.job, batches, self.altering):
            yield units, self.evaluator(final)


def run(job: Job, evaluator: Evaluator) -> Measured:
    """Run a job and measure the change of the metric for every unit; units in the job's ledger do not run again."""
    scale = evaluator.distance() if job.spec.normalize else 1.0
    shape = job.model.n_layers, job.model.n_heads, len(job.places), len(job.tokens)
    finished = finish(SweepWork.of(job, evaluator), what=f"{len(job.heads)} heads")
    found = Measured(np.full(shape, np.nan), interrupted=finished.interrupted)
    for unit, change in finished.values.items():
        found.add(unit, change / scale)
    if found.interrupted:
        warn(interrupted_after(f"{len(found.reached)} of {len(job.units)} units", "the rest are NaN"))
    return found


def warn_of_undefined(metric: Metric, nodes: Sequence[Node]) -> None:
    """Warn which heads or MLPs have no score, because the metric was not finite for them."""
    if nodes:
        shown = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
        warn(f"metric {name_of(metric)} gave values that are not finite for {shown}; their scores are NaN")


def finals(
    job: Job, batches: Iterable[Batch], altering: Altering
) -> Iterator[tuple[list[Unit], Float[Tensor, "unit row position d_model"]]]:
    """Run batches wave by wave, and yield the units of each with their final states at the read positions.

    If Ctrl-C stops a batch, the waves before it are yielded too, but not if they are stored: whole batches give the
    same bits when a sweep is resumed.
    """
    keep_freed_memory()
    for batch in batches:
        new = altering.of(batch.places)
        units: list[Unit] = []
        carried: list[Tensor] = []
        stopped = None
        try:
            for wave in batch.waves:
                carried.append(carry(job, changed(job, wave, new)))
                units += wave
        except KeyboardInterrupt as interrupt:
            stopped = interrupt
        if units and (stopped is None or job.ledger is None):
            yield units, torch.cat(carried)
        if stopped is not None:
            raise stopped


def passes(job: Job) -> list[tuple[int, ...]]:
    """Places that share the same new z. Keys and values need one pass per place: they change z at all later tokens."""
    places = tuple(range(len(job.places)))
    return [(place,) for place in places] if site_of(job.intervention) in KEY_SITES else [places]


def batches(job: Job, stack: int | None = None) -> list[Batch]:
    """All units of a job in batches: waves whose logits are computed together, because small products are slow.

    Args:
        stack: how many units a wave holds; by default, as many as planned.
    """
    made = []
    for places in passes(job):
        every, size = [tuple(wave) for wave in waves(job, places, stack)], job.plan.joined
        made += [Batch(tuple(every[start : start + size]), places) for start in range(0, len(every), size)]
    return made


def waves(job: Job, places: Iterable[int], stack: int | None = None) -> Iterator[list[Unit]]:
    """The units of each wave: heads in layer order at one place, ``stack`` of them, by default as many as planned."""
    heads, step = sorted(job.heads), stack or job.plan.stack
    for place in places:
        for start in range(0, len(heads), step):
            yield [(head, place) for head in heads[start : start + step]]


class Altering:
    """The new z of every head of a job, computed for some places when it is first needed; the last one is kept."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._kept: tuple[Sequence[int], Altered | None] | None = None

    def of(self, places: Sequence[int]) -> Altered | None:
        """See ``alter``."""
        if self._kept is None or self._kept[0] != places:
            self._kept = None
            self._kept = places, alter(self._job, places)
        return self._kept[1]


def alter(job: Job, places: Sequence[int]) -> Altered | None:
    """Every head's new z if the intervention acts on q, k, v or the pattern; None if it acts on z."""
    site = site_of(job.intervention)
    if site == "z":
        return None
    at = job.places[places[0]].at if site in KEY_SITES else None
    layers = sorted({head.layer for head in job.heads})
    return altered_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)


Changes = list[tuple[HeadId, Tensor, Tensor]]
"""The heads that a unit changes, each with its new z, and the first position that changes."""


def changed(job: Job, units: Sequence[Unit], altered: Altered | None) -> list[Changes]:
    """What each of some units changes."""
    return [[(member, *new_z(job, member, place, altered)) for member in job.members(head)] for head, place in units]


def carry(job: Job, units: Sequence[Changes]) -> Float[Tensor, "unit row position d_model"]:
    """The final states at the read positions, of units that change this."""
    return job.chunks.run(lambda some: [_carry_at_once(job, some)], units)[0]


def _carry_at_once(job: Job, units: Sequence[Changes]) -> Tensor:
    first = torch.stack([start for unit in units for _, _, start in unit]).amin(0)
    groups = torch.arange(len(job.tokens), device=first.device).split(job.plan.rows)
    if job.plan.groups is not None:
        groups = tuple(torch.tensor(group, device=first.device) for group in job.plan.groups)
    parts = []
    for rows in groups:
        window = _rows(job, rows, first[rows], [(head, new) for unit in units for head, new, _ in unit])
        wave = Wave(job.base, rows, window)
        copies = [[Edit(head.layer, "z", head.head, wave.take(new)) for head, new, _ in unit] for unit in units]
        parts.append(wave.run(copies))
    return torch.cat(parts, dim=1)[:, torch.cat(groups).argsort()]


def _rows(
    job: Job,
    rows: Int[Tensor, " row"],
    first: Int[Tensor, " prompt"],
    new: Sequence[tuple[HeadId, Float[Tensor, "prompt pos d_head"]]],
) -> Rows:
    """The rows of some prompts; packed prompts share their first positions while tokens and new z are equal.

    Args:
        new: the new z of all prompts.
    """
    ids, at = job.tokens.ids[rows], job.at[rows]
    if not job.plan.packed:
        return Window.from_start(first, at, layout_of(job.model), ids.shape[1])
    shared = shared_start(ids)
    for head, z in new:
        shared = shared_start(z[rows, :shared], _rounding(job.base.z[head][rows, :shared]))
    return Packed.of(int(first.amin()), shared, at)


def _rounding(z: Float[Tensor, "prompt shared d_head"]) -> float:
    """How much z of the same tokens may differ between prompts by rounding, estimated from the base run."""
    if not z.shape[1]:
        return 0.0
    return float(4 * (z - z[:1]).abs().amax() + 8 * torch.finfo(torch.float32).eps * z.abs().amax())


def new_z(
    job: Job, head: HeadId, place: int, altered: Altered | None
) -> tuple[Float[Tensor, "prompt pos d_head"], Int[Tensor, " prompt"]]:
    """A head's new z for a place, and the first position at which it differs from the old z."""
    return changed_z(job.intervention, job.base, job.source, head, job.places[place].at, altered)
