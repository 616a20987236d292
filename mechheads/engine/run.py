"""Running units of a job to their final states: heads, each changed at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine import proved
from mechheads.engine.dispatch import Batch
from mechheads.engine.job import Job, Place, Unit
from mechheads.engine.rows import Packed, shared_start
from mechheads.engine.wavefront import Edit
from mechheads.heads import HeadId
from mechheads.interventions.new_z import AllNewZ, Finite, all_new_z, apply, first_change, new_z
from mechheads.model.parts import moved
from mechheads.model.proof import PlainHook
from mechheads.runs.head_cache import KEY_SITES

NewValues = list[tuple[HeadId, Tensor, int]]
"""The heads that a unit changes; each with a tensor [prompt, pos, head, d_head] and the index of its new z there."""


@dataclass
class UnitRuns:
    """Runs units of a job; what is computed for all heads at once is kept until other places need another one."""

    job: Job
    _kept: tuple[int | None, AllNewZ | None] | None = None

    def __call__(self, units: Sequence[Unit]) -> list[Float[Tensor, "unit prompt position d_model"]]:
        """The final states at the read positions, as the only entry."""
        job, (changes, first) = self.job, self.changes(units)
        if job.plan.groups is not None:
            return [_carry_packed(job, changes, first, job.plan.groups)]
        parts = []
        for begin in range(0, len(job.tokens), job.plan.rows):
            rows = slice(begin, begin + job.plan.rows)
            wave = job.wave(rows, job.window(first, rows))
            parts.append(wave.run([[edit_of(*new) for new in unit] for unit in taken(changes, wave.take)]))
        return [torch.cat(parts, dim=1)]

    def changes(self, units: Sequence[Unit]) -> tuple[list[NewValues], Int[Tensor, " prompt"]]:
        """What each unit changes, and the first position that any of them changes, on the CPU."""
        job, finite = self.job, Finite(self.job.intervention)
        heads: dict[tuple[int, int], list[HeadId]] = {}
        for head, place in units:
            heads.setdefault((head.layer, place), []).extend(job.members(head))
        found: dict[tuple[HeadId, int], tuple[Tensor, int]] = {}
        differs = []
        for (_, place), of_layer in heads.items():
            at, of_all = job.places[place].at, self.all_new_z(place)
            new, changed = new_z(job.intervention, job.base, job.source, of_layer, at, finite, of_all)
            by_pos = new.transpose(1, 2)
            found |= {(head, place): (by_pos, i) for i, head in enumerate(of_layer)}
            differs.append(changed.any(1))
        first = first_change(differs, finite)
        return [[(member, *found[member, place]) for member in job.members(head)] for head, place in units], first

    def edits(self, unit: Unit, prompt: int, entry: int = 0) -> list[PlainHook]:
        """The hooks that change a unit in a plain forward pass of a prompt; a k or v that heads share, as its z."""
        job, model, site, read = self.job, self.job.model, self.job.site, self.job.reading.activation
        n, at, edits = int(job.tokens.on_cpu.lengths[prompt]), job.places[unit[1]].at, list[PlainHook]()
        grouped, finite = site in KEY_SITES and model.n_kv_heads < model.n_heads, Finite(job.intervention)
        for head, values, index in self.changes([unit])[0][0]:
            if site == "z" or (grouped and (read is None or read.head != head)):
                edits.append(proved.edit(model, "z", head, values[prompt, :n, index]))
                continue
            shared = HeadId(head.layer, head.head - head.head % (model.n_heads // model.n_kv_heads))
            old = job.base.site(site)[head][:, None]
            named = [shared if site in KEY_SITES else head]
            new = apply(job.intervention, old, named, job.base, job.source, finite)[prompt, 0, :n]
            new = new[:, :n] if site == "pattern" else new
            edits.append(proved.edit(model, site, head, new, None if at is None else at[prompt, :n]))
        return edits

    def zeroed(self) -> UnitRuns:
        """The same units with z set to zero."""
        return UnitRuns(proved.zero_of(self.job))

    def all_new_z(self, place: int) -> AllNewZ | None:
        """See ``new_z_of_all``."""
        key = place if self.job.site in KEY_SITES else None
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            self._kept = key, new_z_of_all(self.job, place)
        return self._kept[1]


def taken(
    units: Sequence[NewValues], take: Callable[[Float[Tensor, "prompt pos *rest"]], Tensor]
) -> list[list[tuple[HeadId, Tensor]]]:
    """The heads of each unit with their new z at some positions, which are taken for all heads of a layer at once."""
    every: dict[int, Tensor] = {}

    def of_head(values: Tensor, index: int) -> Tensor:
        if id(values) not in every:
            every[id(values)] = take(values)
        return every[id(values)][:, :, index]

    return [[(head, of_head(values, index)) for head, values, index in unit] for unit in units]


def new_z_of_all(job: Job, place: int) -> AllNewZ | None:
    """Every head's new z if the intervention acts on q, k, v or the pattern; None if it acts on z."""
    if job.site == "z":
        return None
    at = job.places[place].at if job.site in KEY_SITES else None
    layers = sorted({head.layer for head in (*job.measured, *job.base.held)})
    return all_new_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)


def edit_of(head: HeadId, z: Float[Tensor, "prompt width d_head"]) -> Edit:
    """The edit that gives a head a new z."""
    return Edit(head.layer, "z", head.head, z)


def _carry_packed(
    job: Job, units: Sequence[NewValues], first: Int[Tensor, " prompt"], groups: Sequence[Sequence[int]]
) -> Float[Tensor, "unit prompt position d_model"]:
    """The final states of heads, with the prompts of each group in one row."""
    parts, device = [], job.at.device
    for group in groups:
        some = torch.tensor(group)
        rows = moved(some, device)
        wave = job.wave(rows, _packed(job, rows, some, int(first[some].amin()), units))
        parts.append(wave.run([[edit_of(*new) for new in unit] for unit in taken(units, wave.take)]))
    order = torch.tensor([prompt for group in groups for prompt in group]).argsort()
    return torch.cat(parts, dim=1)[:, moved(order, device)]


def _packed(
    job: Job, rows: Int[Tensor, " row"], some: Int[Tensor, " row"], first: int, units: Sequence[NewValues]
) -> Packed:
    """The rows of prompts that share their first positions while tokens and new z are equal."""
    shared = shared_start(job.tokens.on_cpu.ids[some])
    for node, values, index in (new for unit in units for new in unit):
        if isinstance(node, HeadId):
            z = values[rows, :, index]
            shared = shared_start(z[:, :shared], _rounding(job.base.z[node][rows, :shared]))
    for head in job.base.held:
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
