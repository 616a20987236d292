"""A sweep made ready: a ``Spec`` says what is asked, a ``Job`` has everything checked, cached and planned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns, other_side
from mechheads.engine.packing import Packing
from mechheads.engine.places import Place, Positions, find_places
from mechheads.engine.plan import Plan, least_in_flight, make_plan
from mechheads.engine.rows import Window
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.base import Intervention, needs_of, site_of
from mechheads.interventions.basic import Patch, Zero
from mechheads.interventions.new_z import changed_z
from mechheads.ledger.ledger import Ledger
from mechheads.ledger.sweep_key import NO_STORE, Store
from mechheads.limits import DEFAULT_LIMITS, Budget, Limits
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, read_positions, try_metric
from mechheads.metrics.basic import kl_divergence
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.prompts.tokens import Tokens
from mechheads.runs.cache import HeadCache
from mechheads.runs.sites import RUN_SITES
from mechheads.units import show_bytes

_HEADS_TRIED = 8

Unit = tuple[HeadId, int]
"""A head and the index of the place where it is changed."""


@dataclass(frozen=True, eq=False)
class Spec:
    """All that a sweep is, besides the model.

    Attributes:
        prompts, intervention, metric, heads, positions, base, normalize, seed: as in ``mh.sweep``.
        limits: what its ``budget`` stands for.
    """

    prompts: AnyPrompts
    intervention: Intervention
    metric: Metric
    heads: Sequence[HeadLike] | HeadLike | None = None
    positions: Positions = "all"
    base: str = "clean"
    normalize: bool = False
    seed: int = 0
    limits: Limits = DEFAULT_LIMITS

    def check(self, model: Model) -> None:
        """Make sure that the model can be asked this.

        Raises:
            ValueError: if the base or the intervention does not fit.
        """
        if self.base not in ("clean", "corrupted"):
            raise ValueError(f'base is {self.base!r}; choose "clean" or "corrupted"')
        if not callable(self.intervention) or isinstance(self.intervention, type):
            raise ValueError(
                f"intervention is {self.intervention!r}; give a function or an instance, such as mh.Zero()"
            )
        if (site := site_of(self.intervention)) in model.backend.read_only:
            raise ValueError(
                f"site {site!r} of model {model.name!r} can be read but not changed: its attention does not use what a "
                "hook gives back; patch z, q, k or v"
            )


@dataclass(frozen=True, eq=False)
class Job:
    """A sweep made ready: everything checked, both runs cached, the cost planned.

    Made by ``mh.prepare``. Every analysis of the same prompts takes it in place of the model and the prompts, so that
    both runs are cached once: ``mh.activation_patch(job)``, ``mh.path_patch(job, receivers=["L9H1.q"])``.

    Attributes:
        model: the model; ``spec``: what was asked of it.
        runs: the cached runs, which other jobs share.
        base: the run that is changed; ``source``: the run that values are taken from, if prompts are pairs.
        heads, places: what is changed, one head at one place at a time.
        at: the positions that the metric reads.
        plan: what the sweep costs.
        seconds: how long the cached runs took.
        ledger: where finished units are kept.
        together: how many neighbouring query heads change at once, from each head of ``heads`` on.
    """

    model: Model
    spec: Spec
    runs: CachedRuns
    base: HeadCache
    source: HeadCache | None
    heads: tuple[HeadId, ...]
    places: tuple[Place, ...]
    at: Int[Tensor, "prompt position"]
    plan: Plan
    seconds: float
    ledger: Ledger | None = None
    together: int = 1

    def __repr__(self) -> str:
        n = len(self.tokens)
        sides = " and ".join(self.runs.tokens) + " runs" if len(self.runs.tokens) > 1 else "run"
        return (
            f"<Job of {self.model.name!r}: {n} prompt{'s' * (n != 1)} of up to {self.plan.pos} tokens, {sides} cached>"
        )

    @property
    def backend(self) -> Any:
        """The model's, so that an analysis that is given the job has the model for itself."""
        return self.model.backend

    @property
    def intervention(self) -> Intervention:
        return self.spec.intervention

    @property
    def tokens(self) -> Tokens:
        return self.base.tokens

    @property
    def clean(self) -> HeadCache:
        """The run of the clean side; plain prompts have no other."""
        return self.source if self.source is not None and self.spec.base == "corrupted" else self.base

    @property
    def units(self) -> list[Unit]:
        return [(head, place) for place in range(len(self.places)) for head in self.heads]

    def intervening(self, intervention: Intervention) -> Job:
        """The same job with another intervention, which must not need more of the cached runs."""
        return replace(self, spec=replace(self.spec, intervention=intervention))

    def fingerprint(self) -> str:
        """Of the prompts; for pairs the same in both directions."""
        runs = (self.base, self.source)
        return "+".join(sorted(run.tokens.fingerprint() for run in runs if run is not None))


def given(
    model: Model | Job, prompts: AnyPrompts | Job | None, name: str = "prompts"
) -> tuple[Model, Any, CachedRuns | None]:
    """The model, the prompts and the cached runs, if a job brings them.

    Raises:
        ValueError: if prompts are missing, given beside a job, or the job is of another model.
    """
    if isinstance(model, Job):
        if prompts is not None:
            raise ValueError(
                f"{name} and a job are given; a job brings its own prompts: leave {name} out, and give other arguments "
                "by name, such as heads=[...]"
            )
        return model.model, model.spec.prompts, model.runs
    if isinstance(prompts, Job):
        if prompts.model is not model:
            raise ValueError(f"{name} is a job of another model; give mh.prepare(model, ...) of this one")
        return model, prompts.spec.prompts, prompts.runs
    if prompts is None:
        raise ValueError(f"{name} is missing; give prompts, or a job of mh.prepare in place of the model")
    return model, prompts, None


@alone
def prepare(
    model: Model,
    prompts: AnyPrompts,
    *,
    sites: Sequence[str] = ("z",),
    budget: Budget = None,
    progress: bool = True,
) -> Job:
    """Cache the runs of prompts once, for every analysis of them.

    Args:
        prompts: prompts, or pairs.
        sites: the activations to keep, among z, q, k, v and pattern. An analysis that needs another runs the prompts
            once more, and the job keeps that as well.
        budget: memory, bytes or "2 GB" (default 4 GB); runs that need more are kept on disk.
        progress: show a bar.

    Returns:
        A job, which analyses take in place of the model and the prompts. Its scores are those that the prompts give,
        to rounding.

    Raises:
        ValueError: for prompts that cannot be run, an unknown site, or a budget that makes no sense.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> job = mh.prepare(model, pairs, progress=False)
    >>> effect = mh.activation_patch(job, heads=["L23H4"], progress=False)
    >>> direct = mh.path_patch(job, senders=["L23H4"], progress=False)
    >>> effect.name, direct.name
    ('activation patching of z, denoising', 'path patching to final, noising')
    """
    runs, limits = CachedRuns(model, prompts), Limits.of(budget)
    kept = tuple(dict.fromkeys(("z", *_resumed(model), *sites)))
    enough = replace(limits, memory=_room(runs.bytes(dict.fromkeys(runs.tokens, kept)) <= limits.memory))
    for side in runs.tokens:
        runs.run(side, kept, enough, progress).check_finite()
    intervention = Patch() if isinstance(prompts, PromptPairs) else Zero()
    return make_ready(model, Spec(prompts, intervention, kl_divergence, limits=limits), runs=runs, progress=progress)


def make_ready(
    model: Model,
    spec: Spec,
    *,
    runs: CachedRuns | None = None,
    sites: Sequence[str] = (),
    store: Store = NO_STORE,
    progress: bool = True,
) -> Job:
    """Check everything, cache the runs and plan the work.

    Args:
        runs: of the same prompts, where some are cached already.
        sites: activations that the base run keeps besides, for other interventions on the same job.
        store: where finished units are kept.

    Raises:
        ValueError: if anything does not fit, before the model is run.
    """
    spec.check(model)
    heads = check_heads(spec.heads, model.n_layers, model.n_heads)
    runs = CachedRuns(model, spec.prompts) if runs is None else runs
    tokens, other = runs.sides(spec.base)
    at, _ = read_positions(spec.metric, tokens)
    places = find_places(spec.positions, tokens)
    try_metric(spec.metric, tokens, model.d_vocab)
    ledger = store.open(
        model,
        {"base": tokens, "source": other},
        intervention=spec.intervention,
        metric=spec.metric,
        heads=[str(head) for head in heads],
        positions=spec.positions,
        base=spec.base,
    )
    start = time.perf_counter()
    base, source = _cache(model, spec, runs, sites, progress)
    seconds = time.perf_counter() - start
    starts = [_first_change(spec.intervention, place, base, source, heads) for place in places]
    windows = [Window.from_start(first, at, model.layout, tokens.ids.shape[1]) for first in starts]
    packing = Packing.find(tokens.ids, windows[0]) if model.layout == "queries" and len(places) == 1 else None
    plan = make_plan(base, source, site_of(spec.intervention), heads, windows, spec.limits, packing)
    if plan.over_budget:
        warn(
            f"budget is {show_bytes(spec.limits.memory)}, and this sweep takes about {show_bytes(plan.bytes)} besides "
            "the model even with one copy of one prompt at a time; it goes on with that. Give fewer prompts, or "
            "shorter ones"
        )
    if ledger is not None:
        rows, stack, width, groups = ledger.remember("waves", [plan.rows, plan.stack, plan.width, plan.groups])
        plan = replace(plan, rows=rows, stack=stack, width=width, groups=groups and tuple(map(tuple, groups)))
    return Job(model, spec, runs, base, source, heads, places, at, plan, seconds, ledger)


def _cache(
    model: Model, spec: Spec, runs: CachedRuns, sites: Sequence[str], progress: bool
) -> tuple[HeadCache, HeadCache | None]:
    """The base run and, for pairs, the run that values are taken from."""
    tokens, other = runs.sides(spec.base)
    site, needed = site_of(spec.intervention), needs_of(spec.intervention)
    kept = ("z", *_resumed(model), *((site,) if site != "z" else ()), *needed, *sites)
    side = spec.base if other is not None else "clean"
    wanted = runs.bytes({side: kept} | ({} if other is None else {other_side(side): needed or ("z",)}))
    least = least_in_flight(model, tokens, read_positions(spec.metric, tokens)[0].shape[1], spec.limits)
    room = replace(spec.limits, memory=_room(wanted + least <= spec.limits.memory))
    base = runs.run(side, kept, room, progress)
    base.check_finite()
    return base, None if other is None else runs.source(base, other_side(side), needed, room, progress)


def _resumed(model: Model) -> tuple[str, ...]:
    """What a run keeps so that it can be resumed in the middle."""
    return RUN_SITES if model.layout != "whole" else RUN_SITES[:1]


def _room(fits: bool) -> int:
    """Bytes that leave a cached run in memory if it fits, and send it to disk if it does not."""
    return 2**62 if fits else 1


def _first_change(
    intervention: Intervention, place: Place, base: HeadCache, source: HeadCache | None, heads: Sequence[HeadId]
) -> Int[Tensor, " prompt"]:
    """The first position that changes, so that a plan carries as many heads as it can.

    It is the first position of the place. For a patch it is not before the first token that differs between the runs;
    for another intervention on z between two runs, not before the first change that a sample of the heads shows.
    """
    ids = base.tokens.ids
    first = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    if place.at is not None:
        first = place.at.long().argmax(1)
    if isinstance(intervention, Patch) and source is not None:
        first = first.maximum((ids != source.tokens.ids).long().argmax(1))
    elif source is not None and site_of(intervention) == "z":
        some = heads[:: max(1, len(heads) // _HEADS_TRIED)]
        starts = [changed_z(intervention, base, source, head, place.at)[1] for head in some]
        first = first.maximum(torch.stack(starts).amin(0).clamp_max(ids.shape[1] - 1))
    return first
