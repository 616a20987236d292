"""Units of a job, such as heads changed at one place: how they run to their final states, here or by workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine import proved
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.dispatch import Batch, Values, by_workers, setup_of
from mechheads.engine.job import Job, Place, Spec, Unit, make_ready
from mechheads.engine.memory import keep_freed_memory
from mechheads.engine.plan import Plan
from mechheads.engine.proved import prove_wave
from mechheads.engine.rows import Packed, shared_start
from mechheads.engine.wavefront import Edit
from mechheads.heads import HeadId
from mechheads.interventions.new_z import AllNewZ, CheckedIntervention, all_new_z, first_change, new_z
from mechheads.ledger.key import same_but_for_rounding
from mechheads.messages.notices import interrupted_after, until_interrupted, warn
from mechheads.metrics import name_of
from mechheads.model.model import Model
from mechheads.model.parts import moved
from mechheads.model.proof import PlainHook
from mechheads.progress import Bar
from mechheads.runs.head_cache import KEY_SITES
from mechheads.scale.ray_cluster import Ready

Run = Callable[[Sequence[Any]], list[Float[Tensor, "unit prompt position d_model"]]]
"""The final states of units that go through the layers together: one entry, or several that are read of each unit."""
Read = Callable[[Sequence[Any], list[Float[Tensor, "unit prompt position d_model"]]], Values]
"""The values of units, from the units and their final states."""
_SMALL = 0.01
"""The size up to which values need not agree more closely."""
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
        """The values of the units of a batch. If Ctrl-C stops it, finished waves keep theirs, but not with a ledger,
        which stores whole batches, so that a resumed sweep gives the same bits."""
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
    return Work(job, effects, UnitRuns(job), lambda units, finals: job.evaluator(finals[0]))


@dataclass
class Finished:
    """The values of the units that were finished, and whether Ctrl-C stopped the work."""

    values: dict[Any, np.ndarray] = field(default_factory=dict)
    interrupted: bool = False


@dataclass(frozen=True)
class Measured:
    """The changes of a job's metric, in shares of the whole difference if the job normalises; NaN if not reached."""

    heads: Float[np.ndarray, "layer head *group place prompt"]
    interrupted: bool


def measure(work: Work, batches: list[Batch], *, groups: tuple[int, ...] = (), bar: str = "") -> Measured:
    """Measure heads at places, ``groups`` of numbers for each prompt, and warn of those without a value."""
    job, model = work.job, work.job.model
    scale = job.evaluator.distance() if job.spec.normalize else 1.0
    finished = finish(work, batches, what=f"{bar}{len(job.measured)} heads")
    shape = (*groups, len(job.places), len(job.tokens))
    heads = np.full((model.n_layers, model.n_heads, *shape), np.nan)
    for head in set(job.heads) - set(job.measured):
        heads[head.layer, head.head] = np.nan if job.reading.takes(head, job.site) else 0
    reached, undefined = len(finished.values), set[HeadId]()
    while finished.values:  # each is freed when it is copied: for many prompts, both together are large
        (head, place), change = finished.values.popitem()
        heads[head.layer, head.head, ..., place, :] = change / scale
        if np.isnan(change).any():
            undefined.add(head)
    if finished.interrupted:
        units = sum(len(batch.units) for batch in batches)
        warn(interrupted_after(f"{reached} of {units} units", "the rest are NaN"))
    if undefined:
        shown = ", ".join(map(str, sorted(undefined)[:5])) + (", ..." if len(undefined) > 5 else "")
        warn(f"metric {name_of(job.spec.metric)} gave values that are not finite for {shown}; their scores are NaN")
    return Measured(heads, finished.interrupted)


def finish(work: Work, batches: list[Batch], *, what: str) -> Finished:
    """Compute all units that are not in the job's ledger, and commit each batch as soon as it is computed."""
    job, finished = work.job, Finished()
    units = [unit for batch in batches for unit in batch.units]
    stored = {} if job.ledger is None else job.ledger.finished()
    for unit in units:
        if (values := stored.get(unit_key(unit, job.ledger_suffix))) is not None:
            finished.values[unit] = values
    bar = Bar(
        total=sum(map(job.reading.cost_of, units)),
        initial=sum(map(job.reading.cost_of, finished.values)),
        leave=False,
        desc=what,
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )

    def take(units: Sequence[Any], values: Values) -> None:
        new = {unit: value for unit, value in zip(units, values, strict=True) if unit not in finished.values}
        if job.ledger is not None:
            committed = job.ledger.commit({unit_key(unit, job.ledger_suffix): value for unit, value in new.items()})
            new = {unit: committed[unit_key(unit, job.ledger_suffix)] for unit in new}
        finished.values |= new
        bar.update(sum(map(job.reading.cost_of, new)))

    left = [batch for batch in batches if not finished.values.keys() >= set(batch.units)]
    with until_interrupted() as interrupts, bar:
        _repeat(work, batches, finished.values)
        finished.interrupted = compute(work, left, take)
    finished.interrupted |= interrupts.interrupted
    return finished


def _repeat(work: Work, batches: Sequence[Batch], stored: Mapping[Any, np.ndarray]) -> None:
    """Compute the two stored units furthest from 0 again: alone, and if that differs, in the same batch as before."""
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
    """A job on its way to a worker, and the work to do in it."""

    spec: Spec
    plan: Plan
    made_by: Callable[[Job], Work]

    @classmethod
    def of(cls, work: Work) -> _SentJob:
        job = work.job
        spec = replace(job.spec, limits=job.spec.limits.in_one_process)
        return cls(spec, job.plan, work.made_by)

    def __call__(self, model: Model) -> Ready:
        """A function that computes batches with a worker's model."""
        job = replace(make_ready(CachedRuns(model, self.spec.prompts), self.spec), plan=self.plan)
        work = self.made_by(job)
        keep_freed_memory()

        def compute(batch: Batch) -> Values:
            ((_, values),) = work.compute(batch)
            return values

        return compute


NewZ = tuple[HeadId, Tensor, int]
"""A head with a tensor [prompt, pos, head, d_head] and the index of its new z there."""


@dataclass
class UnitRuns:
    """Runs units of a job; what is computed for all heads at once is cached until other places need another one."""

    job: Job
    _cached: tuple[int | None, AllNewZ] | None = None

    def __call__(self, units: Sequence[Unit]) -> list[Float[Tensor, "unit prompt position d_model"]]:
        """The final states at the read positions, as the only entry."""
        job, (changes, first) = self.job, self.changes(units)
        if job.plan.groups is not None:
            return [_carry_packed(job, changes, first, job.plan.groups)]
        parts = []
        for begin in range(0, len(job.tokens), job.plan.rows):
            rows = slice(begin, begin + job.plan.rows)
            wave = job.wave(rows, job.window(first, rows))
            parts.append(wave.run([[edit_of(*new)] for new in new_z_at(changes, wave.take)]))
        return [torch.cat(parts, dim=1)]

    def changes(self, units: Sequence[Unit]) -> tuple[list[NewZ], Int[Tensor, " prompt"]]:
        """What each unit changes, and the first position that any of them changes, on the CPU."""
        job, rule = self.job, CheckedIntervention(self.job.intervention)
        heads: dict[tuple[int, int], list[HeadId]] = {}
        for head, place in units:
            heads.setdefault((head.layer, place), []).append(head)
        by_unit: dict[tuple[HeadId, int], tuple[Tensor, int]] = {}
        differs = []
        for (_, place), of_layer in heads.items():
            at, of_all = job.places[place].at, self.all_new_z(place)
            new, changed = new_z(rule, job.base, job.source, of_layer, at, of_all)
            by_pos = new.transpose(1, 2)
            by_unit |= {(head, place): (by_pos, i) for i, head in enumerate(of_layer)}
            differs.append(changed.any(1))
        first = first_change(differs, rule)
        return [(head, *by_unit[head, place]) for head, place in units], first

    def edits(self, unit: Unit, prompt: int, entry: int = 0) -> list[PlainHook]:
        """The hooks that change a unit in a plain forward pass of a prompt; a k or v that heads share, as its z."""
        job, model, site, read = self.job, self.job.model, self.job.site, self.job.reading.activation
        n, at, head = int(job.tokens.on_cpu.lengths[prompt]), job.places[unit[1]].at, unit[0]
        grouped = site in KEY_SITES and model.n_kv_heads < model.n_heads
        if site == "z" or (grouped and (read is None or read.head != head)):
            ((_, values, index),), _ = self.changes([unit])
            return [proved.edit(model, "z", head, values[prompt, :n, index])]
        shared = HeadId(head.layer, head.head - head.head % (model.n_heads // model.n_kv_heads))
        old, named = job.base.site(site)[head][:, None], [shared if site in KEY_SITES else head]
        new = CheckedIntervention(job.intervention).apply(old, named, job.base, job.source)[prompt, 0, :n]
        new = new[:, :n] if site == "pattern" else new
        return [proved.edit(model, site, head, new, None if at is None else at[prompt, :n])]

    def zeroed(self) -> UnitRuns:
        """The same units with z set to zero."""
        return UnitRuns(proved.zero_of(self.job))

    def all_new_z(self, place: int) -> AllNewZ | None:
        """Every head's new z if the intervention acts on q, k, v or the pattern; None if it acts on z."""
        job, key = self.job, place if self.job.site in KEY_SITES else None
        if job.site == "z":
            return None
        if self._cached is None or self._cached[0] != key:
            self._cached, at = None, None if key is None else job.places[key].at
            layers = sorted({head.layer for head in (*job.measured, *job.base.ablated)})
            rule = CheckedIntervention(job.intervention)
            self._cached = key, all_new_z(job.model, job.base, job.source, rule, at, layers, job.plan.rows)
        return self._cached[1]


def new_z_at(
    changes: Sequence[NewZ], take: Callable[[Float[Tensor, "prompt pos *rest"]], Tensor]
) -> list[tuple[HeadId, Tensor]]:
    """The heads with their new z at the positions that ``take`` selects, for all heads of a layer at once."""
    every = {id(values): values for _, values, _ in changes}
    every = {key: take(values) for key, values in every.items()}
    return [(head, every[id(values)][:, :, index]) for head, values, index in changes]


def edit_of(head: HeadId, z: Float[Tensor, "prompt width d_head"]) -> Edit:
    """The edit that gives a head a new z."""
    return Edit(head.layer, "z", head.head, z)


def _carry_packed(
    job: Job, changes: Sequence[NewZ], first: Int[Tensor, " prompt"], groups: Sequence[Sequence[int]]
) -> Float[Tensor, "unit prompt position d_model"]:
    """The final states of heads, with the prompts of each group in one row."""
    parts, device = [], job.at.device
    for group in groups:
        some = torch.tensor(group)
        rows = moved(some, device)
        wave = job.wave(rows, _packed(job, rows, some, int(first[some].amin()), changes))
        parts.append(wave.run([[edit_of(*new)] for new in new_z_at(changes, wave.take)]))
    order = torch.tensor([prompt for group in groups for prompt in group]).argsort()
    return torch.cat(parts, dim=1)[:, moved(order, device)]


def _packed(
    job: Job, rows: Int[Tensor, " row"], some: Int[Tensor, " row"], first: int, changes: Sequence[NewZ]
) -> Packed:
    """The rows of prompts that share their first positions while tokens and new z are equal."""
    shared = shared_start(job.tokens.on_cpu.ids[some])
    for head, values, index in changes:
        z = values[rows, :, index]
        shared = shared_start(z[:, :shared], _rounding(job.base.z[head][rows, :shared]))
    for head in job.base.ablated:
        shared = shared_start(job.base.z[head][rows, :shared])
    return Packed.of(first, shared, job.at_on_cpu[some], rows.device)


def _rounding(z: Float[Tensor, "prompt shared d_head"]) -> float:
    """How much z of the same tokens may differ between prompts by rounding, estimated from the base run."""
    if not z.shape[1]:
        return 0.0
    return float(4 * (z - z[:1]).abs().amax() + 8 * torch.finfo(torch.float32).eps * z.abs().amax())


def batches(job: Job) -> list[Batch]:
    """All units of a job in batches: waves whose logits are computed together, because small products are slow."""
    made = []
    for places in passes(job.places, job.site):
        every, size = [tuple(wave) for wave in waves(job.measured, places, job.plan.stack)], job.plan.joined
        made += [Batch(tuple(every[start : start + size])) for start in range(0, len(every), size)]
    return made


def passes(places: Sequence[Place], site: str) -> list[tuple[int, ...]]:
    """Places that share the same new z. Keys and values need one pass per place: they change z at all later tokens."""
    every = tuple(range(len(places)))
    return [(place,) for place in every] if site in KEY_SITES else [every]


def waves(measured: Sequence[HeadId], places: Iterable[int], stack: int) -> Iterator[list[Unit]]:
    """The heads of each wave: ``stack`` of them in layer order, at one place."""
    heads = sorted(measured)
    for place in places:
        for start in range(0, len(heads), stack):
            yield [(head, place) for head in heads[start : start + stack]]
