"""A sweep made ready: arguments checked, prompts tokenised, both runs cached, the cost planned."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechheads.altered import changed_z
from mechheads.cache import RUN_SITES, HeadCache
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions import Intervention, Patch, needs_of, site_of
from mechheads.metrics import Metric, read_positions, try_metric
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.plans import Plan, least_in_flight, make_plan
from mechheads.prefix import run_sharing_prefix
from mechheads.prompts import PromptPairs, Prompts, as_prompts
from mechheads.resumable import open_ledger
from mechheads.spill import budget_bytes, show_bytes
from mechheads.store import Ledger
from mechheads.suggest import did_you_mean
from mechheads.tokens import PromptLike, Tokens
from mechheads.windows import Packing, Window

Positions = Literal["all", "each"] | str | Sequence[str | int]
AnyPrompts = Prompts | PromptPairs | Sequence[PromptLike]


_HEADS_TRIED = 8


Unit = tuple[HeadId, int]
"""A head and the index of the place where it is changed."""


@dataclass(frozen=True)
class Place:
    """Where z changes: a label for the result and the positions [prompt, pos], None for all."""

    label: int | str | None
    at: Bool[Tensor, "prompt pos"] | None


@dataclass(frozen=True)
class Job:
    """A sweep made ready: everything checked and both runs cached.

    Attributes:
        together: how many neighbouring query heads change at once, from each head of ``heads`` on.
        side: which of a pair's sides ``base`` is.
    """

    model: Model
    intervention: Intervention
    base: HeadCache
    source: HeadCache | None
    heads: tuple[HeadId, ...]
    places: tuple[Place, ...]
    at: Int[Tensor, "prompt position"]
    plan: Plan
    seconds: float
    ledger: Ledger | None = None
    together: int = 1
    side: str = "clean"

    @property
    def tokens(self) -> Tokens:
        return self.base.tokens

    @property
    def clean(self) -> HeadCache:
        """The run of the clean side; the only one where prompts are no pairs."""
        return self.source if self.source is not None and self.side == "corrupted" else self.base

    @property
    def units(self) -> list[Unit]:
        return [(head, place) for place in range(len(self.places)) for head in self.heads]

    def fingerprint(self) -> str:
        """Of the prompts; for pairs the same in both directions."""
        runs = (self.base, self.source)
        return "+".join(sorted(run.tokens.fingerprint() for run in runs if run is not None))


def prepare(
    model: Model,
    prompts: AnyPrompts,
    intervention: Intervention,
    *,
    metric: Metric,
    heads: Sequence[HeadLike] | HeadLike | None,
    positions: Positions,
    base: str,
    budget: int | str | None,
    progress: bool,
    store: str | PathLike[str] | None = None,
    keep_open: ExitStack | None = None,
    about: Mapping[str, object] | None = None,
    sites: Sequence[str] = (),
) -> Job:
    """Check everything and cache the runs; see ``sweep`` for the arguments.

    Args:
        keep_open: closes the ledger of ``store`` in the end.
        about: what else tells the units in a ledger apart.
        sites: activations that the base run keeps besides, for other interventions on the same job.
    """
    if base not in ("clean", "corrupted"):
        raise ValueError(f'base is {base!r}; choose "clean" or "corrupted"')
    if not callable(intervention) or isinstance(intervention, type):
        raise ValueError(f"intervention is {intervention!r}; give a function or an instance, such as mh.Zero()")
    limit = budget_bytes(budget)
    chosen = check_heads(heads, model.n_layers, model.n_heads)
    site = site_of(intervention)
    if site in model.backend.read_only:
        raise ValueError(
            f"site {site!r} of model {model.name!r} can be read but not changed: its attention does not use what a "
            "hook gives back; patch z, q, k or v"
        )
    tokens, other = tokenize(model, prompts, base)
    at, _ = read_positions(metric, tokens)
    places = find_places(positions, tokens)
    try_metric(metric, tokens, model.d_vocab)
    ledger = None
    if store is not None:
        ledger = open_ledger(
            store, model, {"base": tokens, "source": other}, intervention=intervention, metric=metric,
            heads=[str(head) for head in chosen], positions=positions, base=base, **about or {},
        )  # fmt: skip
        if keep_open is not None:
            keep_open.enter_context(ledger)
    needed = needs_of(intervention)
    resumed = RUN_SITES if model.layout != "whole" else RUN_SITES[:1]
    kept = ("z", *resumed, *((site,) if site != "z" else ()), *needed, *sites)
    wanted = HeadCache.estimate(model, tokens, sites=kept).total
    if other is not None:
        wanted += HeadCache.estimate(model, other, sites=needed or ("z",)).total
    room = wanted if wanted + least_in_flight(model, tokens, at.shape[1]) <= limit else 1
    start = time.perf_counter()
    run = HeadCache.run(model, tokens, sites=kept, budget=room, progress=progress)
    run.check_finite()
    source = None
    if other is not None and needed in ((), ("z",)):
        source = run_sharing_prefix(run, other, budget=room, progress=progress)
    elif other is not None:
        source = HeadCache.run(model, other, sites=needed, budget=room, progress=progress)
    seconds = time.perf_counter() - start
    starts = [_first_change(intervention, place, run, source, chosen) for place in places]
    windows = [Window.from_start(start, at, model.layout, tokens.ids.shape[1]) for start in starts]
    packing = Packing.find(tokens.ids, windows[0]) if model.layout == "queries" and len(places) == 1 else None
    cost = make_plan(run, source, site, chosen, windows, limit, packing)
    if cost.over_budget:
        warn(
            f"budget is {show_bytes(limit)}, and this sweep takes about {show_bytes(cost.bytes)} besides the model "
            "even with one copy of one prompt at a time; it goes on with that. Give fewer prompts, or shorter ones"
        )
    if ledger is not None:
        rows, stack, width, groups = ledger.remember("waves", [cost.rows, cost.stack, cost.width, cost.groups])
        cost = replace(cost, rows=rows, stack=stack, width=width, groups=groups and tuple(map(tuple, groups)))
    return Job(model, intervention, run, source, chosen, places, at, cost, seconds, ledger, side=base)


def _first_change(
    intervention: Intervention, place: Place, base: HeadCache, source: HeadCache | None, heads: Sequence[HeadId]
) -> Int[Tensor, " prompt"]:
    """Before which position nothing seems to change, so that a plan carries as many heads as it can.

    That of the place; between runs that of the first other token, or for what is no patch as some heads have it.
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


def tokenize(model: Model, prompts: AnyPrompts, base: str) -> tuple[Tokens, Tokens | None]:
    """The prompts that are intervened on and, for pairs, the others."""
    if not isinstance(prompts, PromptPairs):
        return as_prompts(prompts).tokens(model), None
    clean, corrupted = prompts.tokens(model)
    return (clean, corrupted) if base == "clean" else (corrupted, clean)


def find_places(positions: Positions, tokens: Tokens) -> tuple[Place, ...]:
    """Where z changes, one entry for each separate change.

    Raises:
        ValueError: if the prompts have no position of a given name, or one is given twice.
    """
    pos = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    if positions == "all":
        return (Place(None, None),)
    if positions == "each":
        return tuple(Place(int(p), (pos == p) & tokens.mask) for p in pos)
    if not isinstance(positions, Sequence) or not len(positions):
        raise ValueError(f'positions is {positions!r}; give "all", "each", a name, or a list of names or token indices')
    names: list[str | int] = [positions] if isinstance(positions, str) else list(positions)
    if unknown := [name for name in names if not isinstance(name, int) and name not in tokens.positions]:
        known = ", ".join(tokens.positions)
        meant = did_you_mean(unknown[0], [*tokens.positions, "all", "each"])
        raise ValueError(
            f'positions: {unknown[0]!r} is not known; these prompts have {known} (or "all", "each").{meant}'
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"positions: {twice[0]!r} is given twice")
    labels = [None] if isinstance(positions, str) else names
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    places = []
    for label, name in zip(labels, names, strict=True):
        at = torch.full_like(tokens.lengths, name) if isinstance(name, int) else tokens.positions[name]
        places.append(Place(label, (pos == torch.where(at < 0, at + tokens.lengths, at)[:, None]) & tokens.mask))
    return tuple(places)


def inside(places: Sequence[Place]) -> Bool[np.ndarray, "place prompt"]:
    """Which prompts reach each place: shorter ones have no such token."""
    return np.stack([place.at.any(1).cpu().numpy() for place in places if place.at is not None])
