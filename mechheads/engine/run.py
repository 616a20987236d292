"""Running a job, wave by wave, to the final states of every unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Unit
from mechheads.engine.memory import in_halves, keep_freed_memory
from mechheads.engine.packing import Packed, shared_start
from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Rows, Window
from mechheads.engine.wavefront import Edit, Wave
from mechheads.heads import HeadId
from mechheads.interventions.base import site_of
from mechheads.interventions.new_z import Altered, altered_z, changed_z
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.progress import Bar
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, name_of
from mechheads.runs.sites import KEY_SITES


@dataclass
class Measured:
    """What a sweep has measured so far.

    Attributes:
        values: metric(changed) - metric(base) on the job's prompts; NaN for units that were not reached.
        reached: the units that were reached.
        interrupted: whether Ctrl-C stopped the sweep.
    """

    values: Float[np.ndarray, "layer head place row"]
    reached: set[Unit] = field(default_factory=set)
    interrupted: bool = False

    @property
    def undefined(self) -> list[HeadId]:
        """Heads for which the metric was not finite."""
        return sorted({head for head, at in self.reached if np.isnan(self.values[head.layer, head.head, at]).any()})

    def add(self, unit: Unit, change: Float[np.ndarray, " prompt"]) -> None:
        self.values[unit[0].layer, unit[0].head, unit[1]] = change
        self.reached.add(unit)


def run(job: Job, evaluator: Evaluator, *, progress: bool = True) -> Measured:
    """Run a job and measure the change of the metric for every unit; units in the job's ledger do not run again."""
    scale = evaluator.distance() if job.spec.normalize else 1.0
    found = measure(job, evaluator, progress=progress)
    if found.interrupted:
        warn(interrupted_after(f"{len(found.reached)} of {len(job.units)} units", "the rest are NaN"))
    found.values /= scale
    return found


def measure(job: Job, evaluator: Evaluator, *, altered: Altered | None = None, progress: bool = True) -> Measured:
    """What ``run`` measures, before it is normalised; ``altered``: every head's new z, if it was computed before."""
    model = job.model
    found = Measured(np.full((model.n_layers, model.n_heads, len(job.places), len(job.rows)), np.nan))
    finished = {} if job.ledger is None else job.ledger.finished()
    for unit in job.units:
        if (change := finished.get(unit_key(job, unit))) is not None:
            found.add(unit, change)
    with until_interrupted() as work:
        for units, final in finals(job, progress=progress, done=found.reached.copy(), altered=altered):
            changes = evaluator(final)
            if job.ledger is not None:
                job.ledger.commit({unit_key(job, unit): change for unit, change in zip(units, changes, strict=True)})
            for unit, change in zip(units, changes, strict=True):
                found.add(unit, change)
    found.interrupted = work.interrupted
    return found


def warn_of_undefined(metric: Metric, heads: Sequence[HeadId]) -> None:
    """Warn which heads have no score, because the metric was not finite for them."""
    if heads:
        shown = ", ".join(map(str, heads[:5])) + (", ..." if len(heads) > 5 else "")
        warn(f"metric {name_of(metric)} gave values that are not finite for {shown}; their scores are NaN")


def unit_key(job: Job, unit: Unit) -> str:
    """The name of a unit in a ledger."""
    return f"{unit[0]} {unit[1]}{job.part}"


def finals(
    job: Job, *, progress: bool = True, done: Set[Unit] = frozenset(), altered: Altered | None = None
) -> Iterator[tuple[list[Unit], Float[Tensor, "unit row position d_model"]]]:
    """Run the sweep wave by wave, and yield units with their final states at the read positions.

    Groups of waves are skipped if all their units are in ``done``. ``altered`` is every head's new z, for a job with
    one place, if it was computed before.
    """
    keep_freed_memory()
    bar = Bar(
        total=job.plan.blocks,
        initial=sum(job.model.n_layers - head.layer for head, _ in done),
        disable=not progress,
        leave=False,
        desc=f"{len(job.heads)} heads",
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )
    with bar:
        for places in passes(job):
            groups = [waves for waves in _groups(job, places) if not done >= {unit for wave in waves for unit in wave}]
            new = alter(job, places) if groups and altered is None else altered
            for waves in groups:
                units: list[Unit] = []
                carried: list[Tensor] = []
                stopped = None
                try:
                    for wave in waves:
                        carried.append(carry(job, wave, new))
                        units += wave
                        bar.update(sum(job.model.n_layers - head.layer for head, _ in wave))
                except KeyboardInterrupt as interrupt:
                    stopped = interrupt
                if units and (stopped is None or job.ledger is None):  # whole groups give the same bits when resumed
                    yield units, torch.cat(carried)
                if stopped is not None:
                    raise stopped


def passes(job: Job) -> list[list[int]]:
    """Places that share the same new z. Keys and values need one pass per place: they change z at all later tokens."""
    places = list(range(len(job.places)))
    return [[place] for place in places] if site_of(job.intervention) in KEY_SITES else [places]


def _groups(job: Job, places: list[int]) -> Iterator[list[list[Unit]]]:
    """Waves whose logits are computed together, because small matrix products are slow."""
    size = max(1, job.spec.limits.logit_rows // (job.plan.stack * len(job.rows)))
    every = list(waves(job, places))
    yield from (every[start : start + size] for start in range(0, len(every), size))


def waves(job: Job, places: Iterable[int], stack: int | None = None) -> Iterator[list[Unit]]:
    """The units of each wave: heads in layer order at one place, ``stack`` of them, by default as many as planned."""
    heads, step = sorted(job.heads), stack or job.plan.stack
    for place in places:
        for start in range(0, len(heads), step):
            yield [(head, place) for head in heads[start : start + step]]


def alter(job: Job, places: list[int]) -> Altered | None:
    """Every head's new z if the intervention acts on q, k, v or the pattern; None if it acts on z."""
    site = site_of(job.intervention)
    if site == "z":
        return None
    at = job.places[places[0]].at if site in KEY_SITES else None
    layers = sorted({head.layer for head in job.heads})
    return altered_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)


def carry(job: Job, units: list[Unit], altered: Altered | None) -> Float[Tensor, "unit row position d_model"]:
    """The final states of some units at the read positions."""

    def carry(some: Sequence[Unit]) -> list[Tensor]:
        return [_carry_at_once(job, [_changed_heads(job, head, place, altered) for head, place in some])]

    return in_halves(carry, units)[0]


def _changed_heads(job: Job, head: HeadId, place: int, altered: Altered | None) -> list[tuple[HeadId, Tensor, Tensor]]:
    """The heads that a unit changes, each with its new z and the first position that changes."""
    return [(member, *new_z(job, member, place, altered)) for member in job.members(head)]


def _carry_at_once(job: Job, units: list[list[tuple[HeadId, Tensor, Tensor]]]) -> Tensor:
    first = torch.stack([start for unit in units for _, _, start in unit]).amin(0)
    groups = torch.arange(len(job.rows), device=first.device).split(job.plan.rows)
    if job.plan.groups is not None:
        groups = tuple(torch.tensor(group, device=first.device) for group in job.plan.groups)
    parts = []
    for rows in (job.rows[group] for group in groups):
        window = _rows(job, rows, first[rows], [(head, new[rows]) for unit in units for head, new, _ in unit])
        copies = [[Edit(head.layer, "z", head.head, window.take(new[rows])) for head, new, _ in unit] for unit in units]
        parts.append(Wave(job.base, rows, window).run(copies))
    return torch.cat(parts, dim=1)[:, torch.cat(groups).argsort()]


def _rows(
    job: Job,
    rows: Int[Tensor, " row"],
    first: Int[Tensor, " prompt"],
    new: Sequence[tuple[HeadId, Float[Tensor, "prompt pos d_head"]]],
) -> Rows:
    """The rows of some prompts; packed prompts share their first positions while tokens and new z are equal."""
    ids, at = job.tokens.ids[rows], job.at[rows]
    if not job.plan.packed:
        return Window.from_start(first, at, layout_of(job.model), ids.shape[1])
    shared = shared_start(ids)
    for head, z in new:
        shared = shared_start(z[:, :shared], _rounding(job.base.z[head][rows, :shared]))
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
