"""The engine: one intervention on every head, one metric, at the least cost.

A new ``z`` at layer l changes nothing below l. So the base run is cached once; for each head the model
is resumed at its own layer from the cached residual stream, several heads stacked on the batch, and only
the positions that the metric reads are unembedded.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from mechheads.heads import HeadId, HeadLike
from mechheads.interventions import Context, Intervention, site_of
from mechheads.jobs import AnyPrompts, Job, Place, Positions, prepare
from mechheads.judge import Judge
from mechheads.metrics import Metric, kl_divergence, name_of
from mechheads.model import Model
from mechheads.plans import Plan
from mechheads.prompts import PromptPairs
from mechheads.resume import altered_z, apply, resume_with
from mechheads.scores import HeadScores
from mechheads.spill import LayerStore


def sweep(
    model: Model,
    prompts: AnyPrompts,
    *,
    intervention: Intervention,
    metric: Metric = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Literal["clean", "corrupted"] = "clean",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    name: str | None = None,
    kind: str = "sweep",
) -> HeadScores:
    """Apply an intervention to one head at a time and measure what it does.

    Args:
        prompts: prompts, or pairs where the intervention reads the other run.
        intervention: what the head's activation becomes; see ``mechheads.interventions``.
        metric: what is measured; see ``mechheads.metrics``.
        heads: the heads to try; left out, every head.
        positions: ``"all"``; ``"each"`` token on its own (the result gains ``pos``); the name of one
            position; or a list of names or token indices (the result gains ``pos`` with these labels). For ``k`` and
            ``v`` these are the positions attended to, else those that attend.
        base: which side of pairs is intervened on; the other is the source.
        normalize: divide by the difference between the two runs, averaged over prompts, so that 0 is
            nothing and 1 is all of it.
        budget: memory, bytes or "2 GB" (default 4 GB).
        seed: for the intervals' bootstrap.
        progress: show a bar.
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
    job = prepare(
        model, prompts, intervention, metric=metric, heads=heads, positions=positions, base=base,
        budget=budget, progress=progress,
    )  # fmt: skip
    judge = Judge(metric, job)
    scale = judge.distance() if normalize else 1.0
    shape = (model.n_layers, model.n_heads, len(job.places), len(job.tokens))
    values = np.full(shape, np.nan)
    interrupted = False
    try:
        for head, place, final in finals(job, progress=progress):
            values[head.layer, head.head, place] = judge(final, head) / scale
    except KeyboardInterrupt:
        interrupted = True
        done = int(np.isfinite(values).any(-1).sum())
        warnings.warn(
            f"interrupted after {done} of {len(job.heads) * len(job.places)} units; the rest are NaN",
            stacklevel=2,
        )
    if judge.undefined:
        where = ", ".join(map(str, judge.undefined[:5])) + (", ..." if len(judge.undefined) > 5 else "")
        warnings.warn(f"metric {name_of(metric)} gave values that are not finite for {where}: NaN", stacklevel=2)
    labels = [place.label for place in job.places if place.label is not None]
    if labels:
        values[:, :, ~judge.inside(job.places)] = np.nan
    else:
        values = values[:, :, 0]
    return HeadScores.from_values(
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


def plan(
    model: Model,
    prompts: AnyPrompts,
    *,
    intervention: Intervention,
    metric: Metric = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Literal["clean", "corrupted"] = "clean",
    budget: int | str | None = None,
) -> Plan:
    """What a sweep would cost, before it is run: the same arguments as ``sweep``.

    Runs the prompts once and times a resumed stack of heads from the middle layer.

    >>> print(mh.plan(model, ["The capital of France is"], intervention=mh.Zero()))  # doctest: +ELLIPSIS
    270 units (270 heads x 1 place, 1 prompt of up to 5 tokens)
    ...
    """
    job = prepare(
        model, prompts, intervention, metric=metric, heads=heads, positions=positions, base=base,
        budget=budget, progress=False,
    )  # fmt: skip
    return replace(job.plan, seconds=_probe(job, Judge(metric, job)))


def finals(
    job: Job, *, progress: bool = True
) -> Iterator[tuple[HeadId, int, Float[Tensor, "prompt position d_model"]]]:
    """Run the sweep: for each head and place the final states at the read positions."""
    by_layer = _by_layer(job)
    bar = tqdm(
        total=job.plan.blocks, disable=not progress, leave=False, desc=f"{len(job.heads)} heads",
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )  # fmt: skip
    with bar:
        for places in _passes(job):
            altered = _alter(job, places)
            for layer, heads in by_layer.items():
                for stack in _stacks(job, layer, heads, places, altered):
                    yield from stack
                    bar.update((job.model.n_layers - layer) * len(stack))


def _by_layer(job: Job) -> dict[int, list[HeadId]]:
    by_layer: dict[int, list[HeadId]] = {}
    for head in job.heads:
        by_layer.setdefault(head.layer, []).append(head)
    return by_layer


def _passes(job: Job) -> list[list[int]]:
    """Places that share one altered run: new keys and values at one place change z at every later token."""
    places = list(range(len(job.places)))
    return [[place] for place in places] if site_of(job.intervention) in ("k", "v") else [places]


def _alter(job: Job, places: list[int]) -> LayerStore | None:
    """Every head's new z where the intervention does not act on z itself."""
    site = site_of(job.intervention)
    if site == "z":
        return None
    at = job.places[places[0]].at if site in ("k", "v") else None
    layers = sorted({head.layer for head in job.heads})
    return altered_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows * job.plan.stack)


def _stacks(
    job: Job, layer: int, heads: list[HeadId], places: list[int], altered: LayerStore | None
) -> Iterator[list[tuple[HeadId, int, Float[Tensor, "prompt position d_model"]]]]:
    """The units of one layer, as many at a time as the plan stacks."""
    z, residual = job.base.z.layer(layer), job.base.stores["resid_pre"][layer]
    waiting: list[tuple[HeadId, int, Tensor]] = []
    for head in heads:
        old = z[:, head.head]
        if altered is None:
            new = apply(job.intervention, old, Context(head, job.base, job.source, job.tokens.mask))
        else:
            new = altered[layer][:, head.head]
        for place in places:
            waiting.append((head, place, _blend(job, old, new, job.places[place])))
            if len(waiting) == job.plan.stack or (head == heads[-1] and place == places[-1]):
                done = _in_rows(job, residual, layer, [(head.head, value) for head, _, value in waiting])
                yield [(head, place, final) for (head, place, _), final in zip(waiting, done, strict=True)]
                waiting = []


def _blend(job: Job, old: Tensor, new: Tensor, place: Place) -> Float[Tensor, "prompt pos d_head"]:
    """The new z at the place, the old one elsewhere; new keys and values change z everywhere."""
    if place.at is None or site_of(job.intervention) in ("k", "v"):
        return new
    return torch.where(place.at[..., None], new, old)


def _probe(job: Job, judge: Judge) -> float:
    """Seconds that the sweep will take: its parts are run once, the stack of heads of a middle layer twice."""
    start = time.perf_counter()
    altered = _alter(job, _passes(job)[0])
    altering = (time.perf_counter() - start) * len(_passes(job))
    by_layer = _by_layer(job)
    layer = sorted(by_layer)[len(by_layer) // 2]
    stacks = [_stacks(job, layer, by_layer[layer], _passes(job)[0], altered) for _ in range(2)]
    next(stacks[0])
    start = time.perf_counter()
    stack = next(stacks[1])
    spent = time.perf_counter() - start
    start = time.perf_counter()
    judge(stack[0][2], stack[0][0])
    judging = (time.perf_counter() - start) * job.plan.units
    done = len(stack) * (job.model.n_layers - layer)
    return job.seconds + altering + judging + spent * job.plan.blocks / done


def _in_rows(
    job: Job, residual: Tensor, layer: int, new_z: list[tuple[int, Tensor]]
) -> Float[Tensor, "unit prompt position d_model"]:
    """Resume in as many parts of the prompts as the plan says."""
    parts = []
    for start in range(0, len(residual), job.plan.rows):
        rows = slice(start, start + job.plan.rows)
        part = [(head, value[rows]) for head, value in new_z]
        parts.append(resume_with(job.model, residual[rows], layer, part, job.at[rows]))
    return torch.cat(parts, dim=1)
