"""The engine: one intervention on every head, one metric, at the least cost.

A new ``z`` at layer l and position p changes nothing below l and nothing before p. So the base run is cached
once; the heads' altered copies join a wavefront (``wave``) at their own layers, compute the positions from p
on, and unembed only those that the metric reads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.altered import Altered, altered_z, changed_z
from mechheads.answers import warn_of_answers
from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.cache import KEY_SITES
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions import Intervention, site_of
from mechheads.jobs import AnyPrompts, Job, Positions, Unit, inside, prepare
from mechheads.judge import Judge
from mechheads.memory import UNSEEN, PeakBytes, keep_freed_memory
from mechheads.metrics import Metric, as_metric, kl_divergence, name_of
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.plans import Plan, in_halves
from mechheads.precision import with_precision
from mechheads.prompts import PromptPairs
from mechheads.scores import HeadScores
from mechheads.wave import Edit, Wave
from mechheads.windows import Packed, Rows, Window, shared_start

_ROWS_OF_LOGITS = 256


@alone
def sweep(
    model: Model,
    prompts: AnyPrompts,
    *,
    intervention: Intervention,
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Literal["clean", "corrupted"] = "clean",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
    name: str | None = None,
    kind: str = "sweep",
) -> HeadScores:
    """Apply an intervention to one head at a time and measure what it does.

    Args:
        prompts: prompts, or pairs where the intervention reads the other run.
        intervention: what the head's activation becomes; see ``mechheads.interventions``.
        metric: what is measured, a function or the name of one of ``mechheads.metrics``, such as "log_prob".
        heads: the heads to try; left out, every head.
        positions: ``"all"``; ``"each"`` token on its own (the result gains ``pos``); the name of one
            position; or a list of names or token indices (the result gains ``pos`` with these labels). For ``k`` and
            ``v`` these are the positions attended to, else those that attend.
        base: which side of pairs is intervened on; the other is the source.
        normalize: divide by the difference between the two runs, averaged over prompts, so that 0 is
            nothing and 1 is all of it.
        budget: memory, bytes or "2 GB" (default 4 GB).
        seed: of the random sign patterns of p.
        progress: show a bar.
        store: a file that keeps finished units as they come: the same call goes on where an interrupted or
            killed one stopped, and ends with the same bits. Anything that changes the numbers, a line of the
            metric's code or the model's weights too, starts anew beside it in the same file.
        name: of the result; left out, made from the intervention.
        kind: of analysis; tells ``HeadScores.citation`` which papers to name.

    Returns:
        metric(intervened) - metric(base) [layer, head(, pos), prompt], in the metric's unit, with p values
        against the metric's ``null``. Interrupted
        by Ctrl-C, it holds what was done; the heads not reached are NaN and in ``.missing``.

    Raises:
        ValueError: for heads, positions, prompts, metric or intervention that do not fit, before the sweep.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Negate:
    ...     def __call__(self, z, context):
    ...         return -z
    >>> effect = mh.sweep(model, ["The capital of France is"], intervention=Negate(), heads="L23H4", progress=False)
    >>> bool(effect.scores.sel(layer=23, head=4) > 0)
    True
    """
    metric = as_metric(metric)
    interrupted = False
    reached: set[Unit] = set()
    with ExitStack() as keep_open:
        job = prepare(
            model, prompts, intervention, metric=metric, heads=heads, positions=positions, base=base,
            budget=budget, progress=progress, store=store, keep_open=keep_open,
        )  # fmt: skip
        judge = Judge(metric, job.base, job.source)
        warn_of_answers(job, metric)
        scale = judge.distance() if normalize else 1.0
        values = np.full((model.n_layers, model.n_heads, len(job.places), len(job.tokens)), np.nan)
        finished = {} if job.ledger is None else job.ledger.finished()
        for unit in job.units:
            if (change := finished.get(_key(unit))) is not None:
                values[unit[0].layer, unit[0].head, unit[1]] = change / scale
                reached.add(unit)
        try:
            for units, final in finals(job, progress=progress, done=reached.copy()):
                changes = judge(final)
                if job.ledger is not None:
                    job.ledger.commit({_key(unit): change for unit, change in zip(units, changes, strict=True)})
                for unit, change in zip(units, changes, strict=True):
                    values[unit[0].layer, unit[0].head, unit[1]] = change / scale
                    reached.add(unit)
        except KeyboardInterrupt:
            interrupted = True
            warn(f"interrupted after {len(reached)} of {len(job.units)} units; the rest are NaN")
    if undefined := sorted({head for head, place in reached if np.isnan(values[head.layer, head.head, place]).any()}):
        where = ", ".join(map(str, undefined[:5])) + (", ..." if len(undefined) > 5 else "")
        warn(f"metric {name_of(metric)} gave values that are not finite for {where}: NaN")
    labels = [place.label for place in job.places if place.label is not None]
    if labels:
        values[:, :, ~inside(job.places)] = np.nan
    else:
        values = values[:, :, 0]
    result = HeadScores.from_values(
        values,
        name=name or f"{name_of(intervention)}, {name_of(metric)}",
        unit="share restored" if normalize else getattr(metric, "unit", ""),
        kind=kind,
        cluster=job.tokens.cluster,
        extra={"pos": labels} if labels else None,
        null=getattr(metric, "null", 0.0),
        seed=seed,
        provenance=model.provenance()
        | {
            "intervention": repr(intervention) if not hasattr(intervention, "__name__") else name_of(intervention),
            "metric": name_of(metric),
            "prompts": job.fingerprint(),
            "n_prompts": len(job.tokens),
            "base": base if isinstance(prompts, PromptPairs) else None,
            "positions": positions if isinstance(positions, str) else list(positions),
            "normalize": normalize,
            "heads": "all" if heads is None else [str(head) for head in job.heads],
            "interrupted": interrupted,
            "seed": seed,
        },
        variables={"base_metric": (("prompt",), judge.base_value.cpu().numpy())},
    )

    def again(other: Model, sample: Sequence[HeadId]) -> HeadScores:
        return sweep(
            other, prompts, intervention=intervention, metric=metric, heads=sample, positions=positions, base=base,
            normalize=normalize, budget=budget, progress=False,
        )  # fmt: skip

    return with_precision(model, result, again)


@alone
def plan(
    model: Model,
    prompts: AnyPrompts,
    *,
    intervention: Intervention,
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Literal["clean", "corrupted"] = "clean",
    budget: int | str | None = None,
) -> Plan:
    """What a sweep would cost, before it is run: the same arguments as ``sweep``.

    Runs the prompts once and a wave of heads from the middle layers twice: once to count the memory, tensor by
    tensor, and once to take the time.

    >>> print(mh.plan(model, ["The capital of France is"], intervention=mh.Zero()))  # doctest: +ELLIPSIS
    270 units (270 heads x 1 place, 1 prompt of up to 5 tokens)
    ...
    """
    metric = as_metric(metric)
    with PeakBytes() as memory:
        job = prepare(
            model, prompts, intervention, metric=metric, heads=heads, positions=positions, base=base,
            budget=budget, progress=False,
        )  # fmt: skip
        judge = Judge(metric, job.base, job.source)
        judge.value(job.base.final_at(job.at).expand(job.plan.stack, -1, -1, -1))  # this memory stays between waves
        _probe(job, judge)
    return replace(job.plan, seconds=_probe(job, judge), bytes=memory.peak + UNSEEN)


def _key(unit: Unit) -> str:
    """A unit's name in a ledger."""
    return f"{unit[0]} {unit[1]}"


def finals(
    job: Job, *, progress: bool = True, done: Set[Unit] = frozenset()
) -> Iterator[tuple[list[Unit], Float[Tensor, "unit prompt position d_model"]]]:
    """Run the sweep wave by wave, but for those all done: some units and their final states at the read positions."""
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
        for places in _passes(job):
            groups = [waves for waves in _groups(job, places) if not done >= {unit for wave in waves for unit in wave}]
            altered = _alter(job, places) if groups else None
            for waves in groups:
                units: list[Unit] = []
                carried: list[Tensor] = []
                stopped = None
                try:
                    for wave in waves:
                        carried.append(_carry(job, wave, altered))
                        units += wave
                        bar.update(sum(job.model.n_layers - head.layer for head, _ in wave))
                except KeyboardInterrupt as interrupt:
                    stopped = interrupt
                if units and (stopped is None or job.ledger is None):  # a ledger takes whole groups, for the same bits
                    yield units, torch.cat(carried)
                if stopped is not None:
                    raise stopped


def _passes(job: Job) -> list[list[int]]:
    """Places that share one altered run: new keys and values at one place change z at every later token."""
    places = list(range(len(job.places)))
    return [[place] for place in places] if site_of(job.intervention) in KEY_SITES else [places]


def _groups(job: Job, places: list[int]) -> Iterator[list[list[Unit]]]:
    """Waves whose logits are computed together: few at a time would make slow products of them."""
    size = max(1, _ROWS_OF_LOGITS // (job.plan.stack * len(job.tokens)))
    waves = list(_waves(job, places))
    yield from (waves[start : start + size] for start in range(0, len(waves), size))


def _waves(job: Job, places: list[int]) -> Iterator[list[Unit]]:
    """The units that go through the layers together: those of one place, in the order of their layers."""
    heads = sorted(job.heads)
    for place in places:
        for start in range(0, len(heads), job.plan.stack):
            yield [(head, place) for head in heads[start : start + job.plan.stack]]


def _alter(job: Job, places: list[int]) -> Altered | None:
    """Every head's new z where the intervention does not act on z itself."""
    site = site_of(job.intervention)
    if site == "z":
        return None
    at = job.places[places[0]].at if site in KEY_SITES else None
    layers = sorted({head.layer for head in job.heads})
    return altered_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)


def _carry(job: Job, units: list[Unit], altered: Altered | None) -> Float[Tensor, "unit prompt position d_model"]:
    """Final states of some units."""

    def carry(some: Sequence[Unit]) -> list[Tensor]:
        return [_carry_at_once(job, [_changed_heads(job, head, place, altered) for head, place in some])]

    return in_halves(carry, units)[0]


def _changed_heads(job: Job, head: HeadId, place: int, altered: Altered | None) -> list[tuple[HeadId, Tensor, Tensor]]:
    """The heads that a unit changes, each with its new z and where that first differs."""
    members = [HeadId(head.layer, head.head + i) for i in range(job.together)]
    return [(member, *new_z(job, member, place, altered)) for member in members]


def _carry_at_once(job: Job, units: list[list[tuple[HeadId, Tensor, Tensor]]]) -> Tensor:
    first = torch.stack([start for unit in units for _, _, start in unit]).amin(0)
    groups = torch.arange(len(job.tokens), device=first.device).split(job.plan.rows)
    if job.plan.groups is not None:
        groups = tuple(torch.tensor(group, device=first.device) for group in job.plan.groups)
    parts = []
    for rows in groups:
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
    """How some prompts lie in rows; packed ones share what is alike in them, the new z included."""
    ids, at = job.tokens.ids[rows], job.at[rows]
    if not job.plan.packed:
        return Window.from_start(first, at, job.model.layout, ids.shape[1])
    shared = shared_start(ids)
    for head, z in new:
        shared = shared_start(z[:, :shared], _rounding(job.base.z[head][rows, :shared]))
    return Packed.of(int(first.amin()), shared, at)


def _rounding(z: Float[Tensor, "prompt shared d_head"]) -> float:
    """By how much z of the same tokens may differ among prompts that a model computes together: as it is seen to do."""
    if not z.shape[1]:
        return 0.0
    return float(4 * (z - z[:1]).abs().amax() + 8 * torch.finfo(torch.float32).eps * z.abs().amax())


def new_z(
    job: Job, head: HeadId, place: int, altered: Altered | None
) -> tuple[Float[Tensor, "prompt pos d_head"], Int[Tensor, " prompt"]]:
    """A head's z with the change at the place, and where it first differs from the old one."""
    return changed_z(job.intervention, job.base, job.source, head, job.places[place].at, altered)


def _probe(job: Job, judge: Judge) -> float:
    """Seconds that the sweep will take: its parts and a wave of the middle layers are run once."""
    start = time.perf_counter()
    altered = _alter(job, _passes(job)[0])
    altering = (time.perf_counter() - start) * len(_passes(job))
    waves = list(_waves(job, _passes(job)[0]))
    units = waves[len(waves) // 2]
    start = time.perf_counter()
    judge(_carry(job, units, altered))
    spent = time.perf_counter() - start
    done = sum(job.model.n_layers - head.layer for head, _ in units)
    return job.seconds + altering + spent * job.plan.blocks / done
