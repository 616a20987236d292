"""The request of a sweep (``Spec``), its positions, and the sweep ready to run (``Job``): checked, cached, planned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.cached_runs import Ablated, AnyPrompts, CachedRuns, ablated_runs, other_side
from mechheads.engine.evaluate import Evaluator, Reading
from mechheads.engine.memory import Chunks
from mechheads.engine.plan import Plan, least_in_flight, make_plan
from mechheads.engine.rows import Packing, Rows, Window
from mechheads.engine.wavefront import Wave
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import (
    Intervention,
    InterventionLike,
    Patch,
    Site,
    Zero,
    as_intervention,
    needs_of,
    site_of,
)
from mechheads.interventions.new_z import CheckedIntervention, first_change, new_z
from mechheads.ledger.key import NO_STORE, Store
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits, current, show_bytes
from mechheads.messages.arguments import check_arguments, did_you_mean
from mechheads.messages.notices import Wrapped, warn
from mechheads.metrics import Metric, kl_divergence, read_positions, try_metric
from mechheads.model.analysis import analysis
from mechheads.model.model import Model, source_of
from mechheads.prompts.chats import note
from mechheads.prompts.prompts import PromptPairs, Prompts, Side, as_prompts
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import RUN_SITES, HeadCache, check_sites

Positions = Literal["all", "each"] | str | Sequence[str | int]


@dataclass(frozen=True)
class Place:
    """Where a head is changed: a label for the result, and the positions [prompt, pos] or None for all."""

    label: int | str | None
    at: Bool[Tensor, "prompt pos"] | None


def find_places(positions: Positions, tokens: Tokens) -> tuple[Place, ...]:
    """The places that ``positions`` names, one for each separate change."""
    pos = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    if positions == "all":
        return (Place(None, None),)
    if positions == "each":
        return tuple(Place(int(p), (pos == p) & tokens.mask) for p in pos)
    if not isinstance(positions, Sequence) or not len(positions):
        raise ValueError(f'positions is {positions!r}; give "all", "each", a name, or a list of names or token indices')
    names: list[str | int] = [positions] if isinstance(positions, str) else list(positions)
    each = {
        name: torch.full_like(tokens.lengths, name) if isinstance(name, int) else tokens.position(name)
        for name in names
    }
    located = {name: at for name, at in each.items() if at is not None}
    if unknown := [str(name) for name in names if name not in located]:
        known = ", ".join(tokens.positions)
        meant = did_you_mean(unknown[0], [*tokens.positions, "all", "each"])
        raise ValueError(
            f'positions: {unknown[0]!r} is not known; these prompts have {known} (or "all", "each"), or give a token '
            f"that each has once.{meant}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"positions: {twice[0]!r} is given twice; name each position once")
    labels = [None] if isinstance(positions, str) else names
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    places = []
    for label, at in zip(labels, located.values(), strict=True):
        places.append(Place(label, (pos == torch.where(at < 0, at + tokens.lengths, at)[:, None]) & tokens.mask))
    return tuple(places)


def by_place(
    places: Sequence[Place], values: Float[np.ndarray, "*rest place prompt"]
) -> tuple[Float[np.ndarray, "*shape prompt"], dict[str, list[int | str]] | None]:
    """The values in the shape of a result, and the labels of the places if they have any."""
    labels = [place.label for place in places if place.label is not None]
    return (where_reached(places, values), {"pos": labels}) if labels else (values[..., 0, :], None)


def where_reached(
    places: Sequence[Place], values: Float[np.ndarray, "*rest place prompt"]
) -> Float[np.ndarray, "*rest place prompt"]:
    """The values, with NaN for every prompt that is too short to have the place."""
    if any(place.label is None or place.at is None for place in places):
        return values
    return np.where(
        np.stack([place.at.any(1).cpu().numpy() for place in places if place.at is not None]), values, np.nan
    )


_HEADS_TRIED = 8


def intervention_for(name: str, intervention: InterventionLike, prompts: AnyPrompts) -> Intervention:
    """The intervention, after a check that the prompts have the runs it needs."""
    made = as_intervention(intervention, name)
    if isinstance(made, Patch) and not isinstance(prompts, PromptPairs):
        raise ValueError(
            f"{name} is {made!r}, which takes values from the source run of a pair; give mh.PromptPairs to an analysis "
            "of pairs, or for plain prompts another intervention, such as mh.Mean()"
        )
    return made


Unit = tuple[HeadId, int]
"""A head and the index of the place where it is changed."""


@dataclass(frozen=True, eq=False)
class Spec:
    """Everything that defines a sweep except the model: what ``mh.sweep`` takes; ``ablated`` is its ``given``."""

    prompts: Prompts | PromptPairs
    intervention: Intervention
    metric: Metric
    heads: Sequence[HeadLike] | HeadLike | None = None
    positions: Positions = "all"
    base: Side = "clean"
    normalize: bool = False
    seed: int = field(default_factory=lambda: current().seed)
    limits: Limits = field(default_factory=lambda: current().limits)
    ablated: Ablated = ()

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self))
        intervention_for("intervention", self.intervention, self.prompts)
        for head, rule in self.ablated:
            intervention_for(f"given[{str(head)!r}]", rule, self.prompts)

    def check(self, model: Model) -> None:
        """Check that the model supports this request."""
        if self.limits.workers is not None:
            source_of(model)
        sites = [site_of(rule) for rule in (self.intervention, *(rule for _, rule in self.ablated))]
        if fixed := [site for site in sites if model.backend.ignores(site)]:
            raise ValueError(
                f"site {fixed[0]!r} of model {model.name!r} can be read but not changed: its attention ignores what a "
                'hook returns; use another, such as site="z"'
            )


@dataclass(frozen=True, eq=False)
class Job(Wrapped):
    """A sweep that is ready to run: everything is checked, both runs are cached, the cost is planned.

    ``mh.prepare`` makes a job. ``mh.sweep``, ``mh.plan`` and the functions of ``mh.patching`` take it in place of the
    model and the prompts, so that the prompts run only once: ``mh.activation_patch(job)``. Its intervention and metric
    are placeholders: analyses use its prompts and runs.

    Attributes:
        model: the model; ``spec``: the request.
        runs: the cached runs, which other jobs can share.
        base: the base run; ``source``: the source run, None for plain prompts.
        heads, places: the heads, which change one at a time, and the places where they do.
        at: the positions that the metric reads; ``at_on_cpu``: the same on the CPU, for windows.
        reading: what the metric reads there, and how far runs go for it.
        answers: which of ``answer`` and ``wrong`` the metric uses, if no heads are ablated all the time.
        plan: the cost of the sweep.
        seconds: the time that the cached runs took.
        ledger: stores finished units; None without ``store``.
        ledger_suffix: what the names of units in the ledger end with, so that parts of an analysis do not share them.
        chunks: how many copies fit into memory together, as far as is known.
    """

    model: Model
    spec: Spec
    runs: CachedRuns
    base: HeadCache
    source: HeadCache | None
    heads: tuple[HeadId, ...]
    places: tuple[Place, ...]
    at: Int[Tensor, "prompt position"]
    at_on_cpu: Int[Tensor, "prompt position"]
    reading: Reading
    answers: frozenset[str]
    plan: Plan
    seconds: float
    ledger: Ledger | None = None
    ledger_suffix: str = ""
    chunks: Chunks = field(default_factory=Chunks)

    def __repr__(self) -> str:
        n = len(self.tokens)
        sides = " and ".join(self.runs.tokens) + " runs" if len(self.runs.tokens) > 1 else "run"
        return (
            f"<Job of {self.model.name!r}: {n} prompt{'s' * (n != 1)} of up to {self.plan.pos} tokens, {sides} cached>"
        )

    @property
    def backend(self) -> Any:
        """The model's backend, which ``@analysis`` reserves if an analysis gets a job in place of a model."""
        return self.model.backend

    @property
    def intervention(self) -> Intervention:
        return self.spec.intervention

    @property
    def site(self) -> Site:
        """The activation that the intervention replaces."""
        return site_of(self.spec.intervention)

    @property
    def tokens(self) -> Tokens:
        return self.base.tokens

    @property
    def measured(self) -> tuple[HeadId, ...]:
        """The heads that run. The others come too late to change what the metric reads, so their effect is 0."""
        return self.reading.reached_by(self.heads)

    def window(self, start: Int[Tensor, " prompt"], rows: slice | Int[Tensor, " row"] = slice(None)) -> Window:
        """The positions that are computed of some prompts if changes start here, with a row for each prompt."""
        pos, at = self.tokens.ids.shape[1], self.at_on_cpu[rows]
        return Window.from_start(start[rows], at, self.model.backend.layout, pos, self.at.device)

    def wave(self, rows: slice | Int[Tensor, " row"], window: Rows) -> Wave:
        """Runs changed copies of some prompts to what the metric reads."""
        return Wave(self.base, rows, window, self.reading, self.evaluator.base_states[rows])

    @cached_property
    def evaluator(self) -> Evaluator:
        """The metric of final states, compared with the base run."""
        return Evaluator(self.spec.metric, self.base, self.source, self.spec.limits)

    def intervening(self, intervention: Intervention) -> Job:
        """The same job without a ledger and with another intervention, which needs only what is cached already."""
        return replace(self, spec=replace(self.spec, intervention=intervention), ledger=None)

    def as_part(self, suffix: str) -> Job:
        """The same job, whose units have a name of their own in the ledger."""
        return replace(self, plan=_as_before(self.plan, self.ledger, f"waves{suffix}"), ledger_suffix=suffix)

    def fingerprint(self) -> str:
        """The fingerprint of the prompts; pairs have the same one in both directions."""
        runs = (self.base, self.source)
        return "+".join(sorted(run.tokens.fingerprint() for run in runs if run is not None))


def resolve(model: Model | Job, prompts: AnyPrompts | Job | None, name: str = "prompts") -> CachedRuns:
    """The runs of an analysis, from a model and prompts, or from a job in the place of one of them."""
    if isinstance(model, Job):
        if prompts is not None:
            raise ValueError(
                f"both {name} and a job are given, but a job has its own prompts; leave {name} out, and give the other "
                "arguments by name, such as heads=[...]"
            )
        job = model
    elif prompts is None:
        raise ValueError(f"{name} is missing; give prompts, or a job from mh.prepare in place of the model")
    elif not isinstance(prompts, Job):
        return CachedRuns(model, prompts if isinstance(prompts, PromptPairs) else as_prompts(prompts))
    elif prompts.model is not model:
        raise ValueError(f"{name} is a job of another model; give a job of this model, from mh.prepare(model, ...)")
    else:
        job = prompts
    job.base.need_model()
    for noted, value in job.runs.notes.items():
        note(noted, value)
    return job.runs


@analysis
def prepare(model: Model, prompts: AnyPrompts, *, sites: Sequence[str] = ("z",)) -> Job:
    """Run prompts once and cache the runs for several analyses.

    Args:
        prompts: prompts, or pairs.
        sites: the activations to cache, among z, q, k, v and pattern. If an analysis needs another one, it runs the
            prompts again, and the job caches that activation too.

    Returns:
        A job, which analyses take in place of the model and the prompts. The scores are the same up to rounding.

    Raises:
        ValueError: if the prompts cannot be run, a site is unknown, or the budget is not valid.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> job = mh.prepare(model, pairs)
    >>> effect = mh.activation_patch(job, heads=["L23H4"], progress=False)
    >>> direct = mh.path_patch(job, senders=["L23H4"], progress=False)
    >>> effect.name, direct.name
    ('activation patching of z, denoising', 'path patching to final, noising')
    """
    runs, limits = resolve(model, prompts), current().limits.in_one_process
    needed = tuple(dict.fromkeys(("z", *_resumed(model), *check_sites(sites))))
    on_disk = runs.bytes(dict.fromkeys(runs.tokens, needed)) > limits.memory
    for run in runs.both(dict.fromkeys(runs.tokens, needed), limits, on_disk):
        run.check_finite()
    intervention = Patch() if isinstance(prompts, PromptPairs) else Zero()
    return make_ready(runs, Spec(runs.prompts, intervention, kl_divergence, limits=limits))


def make_ready(runs: CachedRuns, spec: Spec, store: Store = NO_STORE) -> Job:
    """Check that the model supports a request, cache its runs and plan the work."""
    model = runs.model
    spec.check(model)
    rule = CheckedIntervention(spec.intervention)
    ablated = {head for head, _ in spec.ablated}
    heads = tuple(head for head in check_heads(spec.heads, model.n_layers, model.n_heads) if head not in ablated)
    if not heads:
        raise ValueError("heads names only heads that given ablates already; name another, or leave heads out")
    tokens, other = runs.sides(spec.base)
    places = find_places(spec.positions, tokens)
    reading = Reading.of(spec.metric, model, tokens.ids.shape[1])
    reached = reading.reached_by(heads)
    at, read = (read_positions(spec.metric, each)[0] for each in (tokens, tokens.on_cpu))
    answers = try_metric(spec.metric, tokens, reading.width)
    answers = frozenset() if ablated else answers
    ledger = store.open(
        model,
        {"base": tokens, "source": other},
        intervention=spec.intervention,
        metric=spec.metric,
        heads=[str(head) for head in heads],
        positions=spec.positions,
        base=spec.base,
        **({"given": [(str(head), rule) for head, rule in spec.ablated]} if ablated else {}),
    )
    start = time.perf_counter()
    if ablated:
        runs = ablated_runs(runs, spec.ablated, spec.base, spec.limits)
    needed = (*needs_of(spec.intervention), *(("z",) if ablated else ()))
    wanted = {"clean" if other is None else spec.base: ("z", *_resumed(model), *needed, *({rule.site} - {"z"}))}
    wanted |= {} if other is None else {other_side(spec.base): needed or ("z",)}
    least = least_in_flight(model, tokens, at.shape[1] * reading.width, spec.limits)
    base, *sources = runs.both(wanted, spec.limits, runs.bytes(wanted) + least > spec.limits.memory)
    source = sources[0] if sources else None
    base.claim(None if reading.activation else read)
    if source is not None:
        source.claim()
    seconds = time.perf_counter() - start
    starts = tuple(_first_change(rule, place, base, source, heads) for place in places)
    layout, pos, on_disk = model.backend.layout, tokens.ids.shape[1], model.backend.on_disk is not None
    windows = [Window.from_start(first, read, layout, pos) for first in starts]
    may_pack = layout == "queries" and len(places) == 1 and not on_disk  # weights on disk would be read for each row
    packing = Packing.find(tokens.on_cpu.ids, windows[0]) if may_pack else None
    plan = make_plan((base, source), rule.site, reached, reading, windows, spec.limits, packing)
    plan = replace(plan, unreached=len(heads) - len(reached))
    if plan.over_budget:
        warn(
            f"budget is {show_bytes(spec.limits.memory)}, but this sweep needs about {show_bytes(plan.bytes)} besides "
            "the model, even in the smallest batches. It runs anyway; give fewer or shorter prompts to "
            "use less memory"
        )
    plan = _as_before(plan, ledger, "waves")
    return Job(model, spec, runs, base, source, heads, places, at, read, reading, answers, plan, seconds, ledger)


def _as_before(plan: Plan, ledger: Ledger | None, name: str) -> Plan:
    """The plan with the waves that a ledger remembers, so that a resumed sweep gives the same bits."""
    if ledger is None:
        return plan
    rows, stack, width, groups = ledger.remember(name, [plan.rows, plan.stack, plan.width, plan.groups])
    joined = ledger.remember(f"joined {name}", plan.joined)
    return replace(
        plan, rows=rows, stack=stack, width=width, groups=groups and tuple(map(tuple, groups)), joined=joined
    )


def _resumed(model: Model) -> tuple[str, ...]:
    """The activations that must be cached so that a run can be resumed at any layer."""
    return RUN_SITES if model.backend.layout != "whole" else RUN_SITES[:1]


def _first_change(
    rule: CheckedIntervention, place: Place, base: HeadCache, source: HeadCache | None, heads: Sequence[HeadId]
) -> Int[Tensor, " prompt"]:
    """The first position that changes in each prompt; the later it is, the more heads fit into a wave.
    For any intervention on z between two runs but a patch, a sample of the heads shows where changes begin."""
    ids = base.tokens.on_cpu.ids
    first = torch.zeros(len(ids), dtype=torch.long)
    if place.at is not None:
        first = place.at.long().argmax(1).cpu()
    if isinstance(rule.intervention, Patch) and source is not None:
        differs = ids != source.tokens.on_cpu.ids
        for head in base.ablated:
            differs = differs | (base.z[head] != source.z[head]).any(-1).cpu()
        first = first.maximum(differs.long().argmax(1))
    elif source is not None and rule.site == "z":
        some = heads[:: max(1, len(heads) // _HEADS_TRIED)]
        changed = [new_z(rule, base, source, [head], place.at)[1][:, 0] for head in some]
        first = first.maximum(first_change(changed, rule).clamp_max(ids.shape[1] - 1))
    return first
