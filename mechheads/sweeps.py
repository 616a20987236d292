"""The engine: one intervention on every head, one metric, at the least cost.

A new ``z`` at layer l changes nothing below l. So the base run is cached once; for each head the model
is resumed at its own layer from the cached residual stream, several heads stacked on the batch, and only
the positions that the metric reads are unembedded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from mechheads.cache import HeadCache
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions import Context, Intervention, needs_of, site_of
from mechheads.metrics import Metric, MetricContext, kl_divergence, read_positions
from mechheads.model import Model
from mechheads.plans import Plan, make_plan
from mechheads.prompts import PromptLike, PromptPairs, Prompts, Tokens, as_prompts
from mechheads.resume import altered_z, apply, gather, resume_with
from mechheads.scores import HeadScores
from mechheads.spill import budget_bytes

Positions = Literal["all", "each"] | str | Sequence[str]
AnyPrompts = Prompts | PromptPairs | Sequence[PromptLike]


@dataclass(frozen=True)
class Place:
    """Where z changes: a label for the result and the positions [prompt, pos], None for all."""

    label: int | str | None
    at: Bool[Tensor, "prompt pos"] | None


@dataclass(frozen=True)
class Job:
    """A sweep made ready: everything checked and both runs cached."""

    model: Model
    intervention: Intervention
    base: HeadCache
    source: HeadCache | None
    heads: tuple[HeadId, ...]
    places: tuple[Place, ...]
    at: Int[Tensor, "prompt position"]
    plan: Plan

    @property
    def tokens(self) -> Tokens:
        return self.base.tokens

    def fingerprint(self) -> str:
        """Of the prompts; for pairs the same in both directions."""
        runs = (self.base, self.source)
        return "+".join(sorted(run.tokens.fingerprint() for run in runs if run is not None))


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
            position; or a list of names (the result gains ``pos`` with these labels). For ``k`` and
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
    try:
        for head, place, final in finals(job, progress=progress):
            values[head.layer, head.head, place] = judge(final, head) / scale
    except KeyboardInterrupt:
        done = int(np.isfinite(values).any(-1).sum())
        warnings.warn(
            f"interrupted after {done} of {len(job.heads) * len(job.places)} units; the rest are NaN",
            stacklevel=2,
        )
    labels = [place.label for place in job.places if place.label is not None]
    if labels:
        values[:, :, ~judge.inside(job.places)] = np.nan
    else:
        values = values[:, :, 0]
    return HeadScores.from_values(
        values,
        name=name or f"{_name(intervention)}, {_name(metric)}",
        unit="share restored" if normalize else getattr(metric, "unit", ""),
        kind=kind,
        cluster=job.tokens.cluster,
        extra={"pos": labels} if labels else None,
        null=getattr(metric, "null", 0.0),
        seed=seed,
        provenance=model.provenance()
        | {
            "intervention": repr(intervention) if not hasattr(intervention, "__name__") else _name(intervention),
            "metric": _name(metric),
            "prompts": job.fingerprint(),
            "n_prompts": len(job.tokens),
            "base": base if isinstance(prompts, PromptPairs) else None,
            "positions": positions if isinstance(positions, str) else list(positions),
            "normalize": normalize,
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
    return job.plan.timed(lambda probed: next(iter(finals(job, only=probed, progress=False))))


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
) -> Job:
    """Check everything and cache the runs; see ``sweep`` for the arguments."""
    if base not in ("clean", "corrupted"):
        raise ValueError(f'base is {base!r}; choose "clean" or "corrupted"')
    limit = budget_bytes(budget)
    chosen = check_heads(heads, model.n_layers, model.n_heads)
    site = site_of(intervention)
    tokens, other = tokenize(model, prompts, base)
    at, _ = read_positions(metric, tokens)
    places = find_places(positions, tokens)
    needed = needs_of(intervention)
    run = HeadCache.run(model, tokens, sites=("z", "resid_pre", *needed), budget=limit, progress=progress)
    source = None
    if other is not None:
        source = HeadCache.run(model, other, sites=needed or ("z",), budget=limit, progress=progress)
    cost = make_plan(run, source, site, chosen, len(places), at.shape[1], limit)
    return Job(model, intervention, run, source, chosen, places, at, cost)


def tokenize(model: Model, prompts: AnyPrompts, base: str) -> tuple[Tokens, Tokens | None]:
    """The prompts that are intervened on and, for pairs, the others."""
    if not isinstance(prompts, PromptPairs):
        return as_prompts(prompts).tokens(model), None
    clean, corrupted = prompts.tokens(model)
    return (clean, corrupted) if base == "clean" else (corrupted, clean)


def find_places(positions: Positions, tokens: Tokens) -> tuple[Place, ...]:
    """Where z changes, one entry for each separate change.

    Raises:
        ValueError: if the prompts have no position of a given name.
    """
    pos = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    if positions == "all":
        return (Place(None, None),)
    if positions == "each":
        return tuple(Place(int(p), (pos == p) & tokens.mask) for p in pos)
    names = [positions] if isinstance(positions, str) else list(positions)
    if unknown := [name for name in names if name not in tokens.positions]:
        known = ", ".join(tokens.positions)
        raise ValueError(f'positions: {unknown[0]!r} is not known; these prompts have {known} (or "all", "each")')
    labels = [None] if isinstance(positions, str) else names
    at = [pos == tokens.positions[name][:, None] for name in names]
    return tuple(Place(label, where) for label, where in zip(labels, at, strict=True))


def finals(
    job: Job, *, only: tuple[HeadId, ...] | None = None, progress: bool = True
) -> Iterator[tuple[HeadId, int, Float[Tensor, "prompt position d_model"]]]:
    """Run the sweep: for each head and place the final states at the read positions.

    Args:
        only: these heads of the job; left out, all of them.
    """
    heads = job.heads if only is None else only
    by_layer: dict[int, list[HeadId]] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head)
    site = site_of(job.intervention)
    blocks = sum(job.model.n_layers - head.layer for head in heads) * len(job.places)
    bar = tqdm(
        total=blocks, disable=not progress, leave=False, desc=f"{len(heads)} heads",
        bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
    )  # fmt: skip
    passes: list[list[int]] = [list(range(len(job.places)))]
    if site in ("k", "v"):
        passes = [[place] for place in passes[0]]
    with bar:
        for places in passes:
            altered = None
            if site != "z":
                at = job.places[places[0]].at if site in ("k", "v") else None
                altered = altered_z(job.model, job.base, job.source, job.intervention, at)
            for layer, in_layer in by_layer.items():
                z = job.base.z.layer(layer)
                residual = job.base.stores["resid_pre"][layer]
                changed = None if altered is None else altered[layer]
                units = [(head, place) for head in in_layer for place in places]
                for start in range(0, len(units), job.plan.stack):
                    stack = units[start : start + job.plan.stack]
                    new_z = [(head.head, _new_z(job, z, changed, head, job.places[place])) for head, place in stack]
                    done = _in_rows(job, residual, layer, new_z)
                    for (head, place), final in zip(stack, done, strict=True):
                        yield head, place, final
                    bar.update((job.model.n_layers - layer) * len(stack))


def _new_z(
    job: Job, z: Tensor, altered: Tensor | None, head: HeadId, place: Place
) -> Float[Tensor, "prompt pos d_head"]:
    """The head's new z, with the old one at the positions that stay."""
    old = z[:, head.head]
    if altered is None:
        new = apply(job.intervention, old, Context(head, job.base, job.source, job.tokens.mask))
    else:
        new = altered[:, head.head]
    if place.at is None or site_of(job.intervention) in ("k", "v"):
        return new
    return torch.where(place.at[..., None], new, old)


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


class Judge:
    """Applies a metric to final states, some prompts at a time, against the base run.

    Raises:
        ValueError: if the metric's value for the base run is not finite or not one number a prompt.
    """

    _LOGITS = 2**26

    def __init__(self, metric: Metric, job: Job) -> None:
        self.metric, self.job = metric, job
        self.mask = read_positions(metric, job.tokens)[1]
        step = max(1, self._LOGITS // (job.at.shape[1] * job.model.d_vocab))
        self._rows = [slice(start, start + step) for start in range(0, len(job.tokens), step)]
        self._base_final = gather(job.base.final, job.at)
        self._kept = self._base_logits(self._rows[0]) if len(self._rows) == 1 else None
        self.base_value = self.value(self._base_final, "the unchanged run")

    def __call__(self, final: Float[Tensor, "prompt position d_model"], head: HeadId) -> np.ndarray:
        """The metric of changed final states, less that of the base run, for each prompt."""
        return (self.value(final, str(head)) - self.base_value).double().cpu().numpy()

    def value(self, final: Float[Tensor, "prompt position d_model"], of: str) -> Float[Tensor, " prompt"]:
        """The metric itself, checked."""
        parts = []
        for rows in self._rows:
            base = self._base_logits(rows) if self._kept is None else self._kept
            context = MetricContext(base, self.job.tokens.rows(rows), self.mask[rows])
            part = self.metric(self.job.model.unembed(final[rows]), context)
            n = len(self.mask[rows])
            if not isinstance(part, Tensor) or part.shape != (n,):
                got = list(part.shape) if isinstance(part, Tensor) else type(part).__name__
                raise ValueError(f"metric {_name(self.metric)} gave {got} for {n} prompts; it must give one value each")
            if not part.isfinite().all():
                raise ValueError(f"metric {_name(self.metric)} gave values that are not finite for {of}")
            parts.append(part)
        return torch.cat(parts)

    def distance(self) -> float:
        """The metric of the source run less that of the base run, averaged over prompts.

        Raises:
            ValueError: if there is no source run, or both give the same.
        """
        if self.job.source is None:
            raise ValueError("normalize needs two runs; give PromptPairs")
        source = self.value(gather(self.job.source.final, self.job.at), "the other run")
        distance = float((source - self.base_value).double().mean())
        if abs(distance) < 1e-6:
            raise ValueError("normalize: the metric is the same for both runs, so there is nothing to restore")
        return distance

    def inside(self, places: Sequence[Place]) -> np.ndarray:
        """Which prompts reach each place [place, prompt]: shorter ones have no such token."""
        return np.stack([place.at.any(1).cpu().numpy() for place in places if place.at is not None])

    def _base_logits(self, rows: slice) -> Tensor:
        return self.job.model.unembed(self._base_final[rows])


def _name(thing: object) -> str:
    return getattr(thing, "__name__", None) or repr(thing)
