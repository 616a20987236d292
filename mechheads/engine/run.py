"""Running units of a job to their final states: heads and MLPs, each changed at one place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.dispatch import Batch
from mechheads.engine.job import Job, Unit
from mechheads.engine.memory import tokens_in_flight
from mechheads.engine.plan import batches_at_least
from mechheads.engine.rows import Packed, Rows, shared_start
from mechheads.engine.wavefront import Edit
from mechheads.heads import HeadId, Mlp, Node
from mechheads.interventions.base import Context
from mechheads.interventions.basic import Patch
from mechheads.interventions.new_z import AllNewZ, all_new_z, apply, new_z
from mechheads.runs.head_cache import KEY_SITES

NewValues = list[tuple[Node, Tensor, Tensor]]
"""The nodes that a unit changes, each with its new z or output, and the first position that changes."""


class UnitRuns:
    """Runs units of a job; what is computed for all heads at once is kept until other places need another one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._kept: tuple[int | None, AllNewZ | None] | None = None

    def __call__(self, units: Sequence[Unit]) -> list[Float[Tensor, "unit prompt position d_model"]]:
        """The final states at the read positions, as the only entry; the units are heads, or MLPs at one place."""
        return [carry(self.job, [self.changes(unit) for unit in units])]

    def changes(self, unit: Unit) -> NewValues:
        """What a unit changes."""
        node, place = unit
        if isinstance(node, Mlp):
            return [(node, new_output(self.job, node.layer, place), self.job.starts[place])]
        return [(head, *z_of(self.job, head, place, self.all_new_z(place))) for head in self.job.members(node)]

    def all_new_z(self, place: int) -> AllNewZ | None:
        """See ``new_z_of_all``."""
        key = place if self.job.site in KEY_SITES else None
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            self._kept = key, new_z_of_all(self.job, place)
        return self._kept[1]


def new_z_of_all(job: Job, place: int) -> AllNewZ | None:
    """Every head's new z if the intervention acts on q, k, v or the pattern; None if it acts on z."""
    if job.site == "z":
        return None
    at = job.places[place].at if job.site in KEY_SITES else None
    layers = sorted({head.layer for head in (*job.measured, *job.base.held)})
    return all_new_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)


def z_of(
    job: Job, head: HeadId, place: int, of_all: AllNewZ | None
) -> tuple[Float[Tensor, "prompt pos d_head"], Int[Tensor, " prompt"]]:
    """A head's new z for a place, and the first position at which it differs from the old z."""
    return new_z(job.intervention, job.base, job.source, head, job.places[place].at, of_all)


def new_output(job: Job, layer: int, place: int) -> Float[Tensor, "prompt pos d_model"]:
    """What an MLP gives under a job's intervention at a place.

    Raises:
        ValueError: if it is a patch of plain prompts.
    """
    mask, at, rule = job.tokens.mask, job.places[place].at, job.intervention
    old = job.base.stores["mlp_out"][layer]
    if isinstance(rule, Patch) and job.source is not None:
        new = job.source.stores["mlp_out"][layer]
    else:
        new = apply(rule, old, Context(HeadId(layer, 0), job.base, job.source, mask))
    return torch.where((mask if at is None else mask & at)[..., None], new, old)


def edit_of(node: Node, value: Float[Tensor, "prompt width d"]) -> Edit:
    """The edit that gives a node a new z or output."""
    if isinstance(node, Mlp):
        return Edit(node.layer, "mlp_out", None, value)
    return Edit(node.layer, "z", node.head, value)


def carry(job: Job, units: Sequence[NewValues]) -> Float[Tensor, "unit prompt position d_model"]:
    """The final states at the read positions, of units that change this."""
    first = torch.stack([start for unit in units for _, _, start in unit]).amin(0)
    of_mlps = isinstance(units[0][0][0], Mlp)
    step = mlps_at_once(job, first)[0] if of_mlps else job.plan.rows
    groups = torch.arange(len(job.tokens), device=first.device).split(step)
    packed = job.plan.groups is not None and not of_mlps
    if packed:
        groups = tuple(torch.tensor(group, device=first.device) for group in job.plan.groups or ())
    of_heads = [(node, new) for unit in units for node, new, _ in unit if isinstance(node, HeadId)]
    parts = []
    for rows in groups:
        if packed:
            window: Rows = _packed(job, rows, first[rows], of_heads)
        else:
            window = job.window(first, rows)
        wave = job.wave(rows, window)
        parts.append(wave.run([[edit_of(node, wave.take(new)) for node, new, _ in unit] for unit in units]))
    return torch.cat(parts, dim=1)[:, torch.cat(groups).argsort()]


def _packed(
    job: Job,
    rows: Int[Tensor, " row"],
    first: Int[Tensor, " prompt"],
    new: Sequence[tuple[HeadId, Float[Tensor, "prompt pos d_head"]]],
) -> Packed:
    """The rows of prompts that share their first positions while tokens and new z are equal.

    Args:
        new: the new z of all prompts.
    """
    shared = shared_start(job.tokens.ids[rows])
    for head, z in new:
        shared = shared_start(z[rows, :shared], _rounding(job.base.z[head][rows, :shared]))
    for head in job.base.held:
        shared = shared_start(job.base.z[head][rows, :shared])
    return Packed.of(int(first.amin()), shared, job.at[rows])


def _rounding(z: Float[Tensor, "prompt shared d_head"]) -> float:
    """How much z of the same tokens may differ between prompts by rounding, estimated from the base run."""
    if not z.shape[1]:
        return 0.0
    return float(4 * (z - z[:1]).abs().amax() + 8 * torch.finfo(torch.float32).eps * z.abs().amax())


def batches(job: Job) -> list[Batch]:
    """All units of a job in batches: waves whose logits are computed together, because small products are slow.

    MLPs come after the heads, in batches of their own.
    """
    made = []
    for places in passes(job):
        every, size = [tuple(wave) for wave in waves(job, places, job.plan.stack)], job.plan.joined
        made += [Batch(tuple(every[start : start + size])) for start in range(0, len(every), size)]
    return made + mlp_batches(job)


def passes(job: Job) -> list[tuple[int, ...]]:
    """Places that share the same new z. Keys and values need one pass per place: they change z at all later tokens."""
    places = tuple(range(len(job.places)))
    return [(place,) for place in places] if job.site in KEY_SITES else [places]


def waves(job: Job, places: Iterable[int], stack: int) -> Iterator[list[Unit]]:
    """The heads of each wave: ``stack`` of them in layer order, at one place."""
    heads = sorted(job.measured)
    for place in places:
        for start in range(0, len(heads), stack):
            yield [(head, place) for head in heads[start : start + stack]]


def mlp_batches(job: Job) -> list[Batch]:
    """The MLPs in batches of one wave, if the job measures them; the same ones if it is resumed."""
    if job.spec.nodes == "heads":
        return []
    made, mlps = [], [Mlp(layer) for layer in range(job.reading.ahead)]
    most = math.ceil(len(job.starts) * len(mlps) / batches_at_least(job.spec.limits))
    for place, start in enumerate(job.starts):
        stack = min(mlps_at_once(job, start)[1], most)
        if job.ledger is not None:
            stack = job.ledger.remember(f"mlps {place}", stack)
        units = [(mlp, place) for mlp in mlps]
        made += [Batch((tuple(units[begin : begin + stack]),)) for begin in range(0, len(units), stack)]
    return made


def mlps_at_once(job: Job, start: Int[Tensor, " prompt"]) -> tuple[int, int]:
    """How many prompts, and how many MLPs that change them from here on, go through the layers together."""
    width = job.window(start).width
    tokens = tokens_in_flight(job.model, job.spec.limits.memory // 4, job.plan.pos, job.spec.limits)
    rows = max(1, min(len(job.tokens), tokens // width))
    return rows, max(1, min(job.model.n_layers, tokens // (rows * width)))
