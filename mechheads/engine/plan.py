"""The cost of a sweep, before it runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mechheads.engine.evaluate import Reading
from mechheads.engine.memory import logit_bytes, tokens_in_flight
from mechheads.engine.rows import Packing, Window
from mechheads.heads import HeadId
from mechheads.limits import Limits, show_bytes, show_seconds
from mechheads.messages.notices import Wrapped
from mechheads.model.core import ModelCore
from mechheads.model.on_disk import bytes_of
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import KEY_SITES, HeadCache, cache_sizes, token_bytes, tokens_in_run
from mechheads.scale.ray_cluster import pool_of

_WHY = {
    "queries": "copies of a prompt share rows and its cached keys",
    "rows": "one row per copy, with cached keys",
    "whole": "one row per copy, from the first token on: a run of this model cannot be resumed from cached keys",
}

BATCHES_A_WORKER = 3
"""Into how many batches the units of each worker are cut at least, so that all workers end at about the same time."""


_LEAST_SPARE = 16
"""If cached runs fill the budget, prompts run together in this part of it: one at a time takes ten times as long."""
VALUE_BYTES = 16
"""The bytes of a value of a unit and a prompt: two numbers in float64, as it is measured and in the result."""


@dataclass(frozen=True, repr=False)
class Plan(Wrapped):
    """The cost of a sweep.

    Attributes:
        units: the number of units, heads times places.
        blocks: how many times a block runs, summed over units; a unit starts at its head's layer.
        heads, places: the heads, and the number of places.
        prompts, pos: the number of prompts and of positions.
        width: positions computed for the widest place, or tokens in the widest row that prompts share.
        stack: how many units a wave holds; ``rows``: how many prompts run at once; ``groups``: the prompts of each
            row, if they share rows; ``joined``: of how many waves the logits are computed together.
        layout: how copies are laid out in rows: ``queries``, ``rows`` or ``whole``; ``times``: the positions that this
            layout computes, as a multiple of those that cached keys would leave to compute.
        forwards: the work in full forward passes of the prompts, the cached runs included.
        flops: floating-point operations.
        bytes: the most memory used at one time, besides the model.
        on_disk: whether the cached runs are on disk.
        seconds: the estimated time; None until it is measured.
        budget: the memory that the settings allow; if ``bytes`` is larger, the sweep cannot run with less.
        weights_on_disk: the bytes of the model's weights that are on disk.
        bytes_read: the bytes of weights that the sweep and its cached runs read from disk.
        workers: the number of workers, each of which has a model of ``model_bytes`` and uses ``bytes`` besides it; 0 if
            this process computes.
        ablated: heads that are ablated all the time.
        until: the head's pattern or z at which runs end; None if the metric reads logits. ``unreached``: how many of
            the heads come too late to change it, so that they do not run.
    """

    units: int
    blocks: int
    heads: tuple[HeadId, ...]
    places: int
    prompts: int
    pos: int
    width: int
    stack: int
    rows: int
    layout: str
    bytes: int
    on_disk: bool
    forwards: float = 0.0
    flops: float = 0.0
    groups: tuple[tuple[int, ...], ...] | None = None
    joined: int = 1
    seconds: float | None = None
    budget: int | None = None
    weights_on_disk: int = 0
    bytes_read: int = 0
    workers: int = 0
    model_bytes: int = 0
    times: float = 1.0
    ablated: tuple[HeadId, ...] = ()
    until: str | None = None
    unreached: int = 0

    @property
    def reads(self) -> float:
        """How many times all weights that are on disk are read."""
        return self.bytes_read / self.weights_on_disk if self.weights_on_disk else 0.0

    @property
    def passes(self) -> int:
        """How many times the waves of all heads run: for each place, and for each part of the prompts."""
        parts = math.ceil(self.prompts / self.rows) if self.groups is None else len(self.groups)
        return self.places * parts

    @property
    def packed(self) -> bool:
        """Whether prompts share rows."""
        return self.groups is not None

    @property
    def over_budget(self) -> str:
        """A remark for the repr if the sweep needs more memory than was allowed, else empty."""
        if self.budget is None or self.bytes <= self.budget:
            return ""
        return f" (in the smallest batches; the budget is {show_bytes(self.budget)})"

    def __repr__(self) -> str:
        places = "1 place" if self.places == 1 else f"{self.places} places"
        prompts = "1 prompt" if self.prompts == 1 else f"{self.prompts} prompts"
        where = "on disk" if self.on_disk else "in memory"
        waves = math.ceil(len(self.heads) * self.places / self.stack)
        heads = "1 head" if len(self.heads) == 1 else f"{len(self.heads)} heads"
        rows = "" if self.rows >= self.prompts else f", {self.rows} prompts at a time"
        computed = (
            f"rows of up to {self.width} tokens hold up to {self.rows} prompts, their shared first tokens only once"
            if self.packed
            else f"{self.width} of {self.pos} positions computed, from the first that changes to the last that is read"
        )
        workers = f"{self.workers} worker{'s' * (self.workers != 1)}"
        each = f" of {show_bytes(self.model_bytes)} in each of {workers}" if self.workers else ""
        without = f", given {', '.join(map(str, self.ablated))}" if self.ablated else ""
        more = f": about {self.times:.2g} times the work" if self.layout == "whole" else ""
        lines = [
            f"{self.units} units ({heads} x {places}, {prompts} of up to {self.pos} tokens){without}",
            f"{self.forwards:.3g} full forward passes, {self.flops / 1e12:.3g} TFLOP; {computed}",
            f"{waves} {'wave' if waves == 1 else 'waves'} of up to {self.stack} units that join at their own layer"
            f"{rows}; {_WHY[self.layout]}{more}",
            f"memory {show_bytes(self.bytes)} besides the model{self.over_budget}{each}, cached runs {where}",
        ]
        if self.until is not None:
            late = "head comes" if self.unreached == 1 else "heads come"
            lines.append(
                f"runs end at {self.until}, which the metric reads, and compute no logits; {self.unreached} {late} too "
                "late to change it"
            )
        if self.weights_on_disk:
            lines.append(
                f"{show_bytes(self.weights_on_disk)} of weights on disk, read {self.reads:.3g} times: "
                f"{show_bytes(self.bytes_read)}"
            )
        if self.seconds is not None:
            lines.append(f"about {show_seconds(self.seconds)}")
        return "\n".join(lines)


def make_plan(
    runs: tuple[HeadCache, HeadCache | None],
    site: str,
    heads: tuple[HeadId, ...],
    reading: Reading,
    windows: Sequence[Window],
    limits: Limits,
    packing: Packing | None = None,
) -> Plan:
    """Plan a sweep over cached runs: how much to compute at once, and what it costs.
    What stays in memory leaves the rest of the budget to tokens, first of more prompts, then of more heads."""
    (base, source), budget = runs, limits.memory
    model = base.need_model()
    prompts, pos = windows[0].n, base.tokens.ids.shape[1]
    places, read = len(windows), windows[0].at.shape[1] * reading.width
    blocks = sum(reading.cost(head.layer) for head in heads) * places
    units = len(heads) * places
    extra_runs = 0 if site == "z" else places if site in KEY_SITES else 1
    extra_runs += (1 + (source is not None)) * (1 + bool(base.ablated))
    on_disk = any(store.on_disk for store in base.stores.values())
    cached = [cache_sizes(model, run.tokens, tuple(run.stores)) for run in (base, source) if run]
    cached += [cache_sizes(model, base.tokens, ("z",))] if site != "z" else []
    resident = sum(sum(size.values()) // (model.n_layers if on_disk else 1) for size in cached)
    resident += _base_logits(prompts, read, limits) + VALUE_BYTES * units * prompts
    spare = max(budget - resident, budget // _LEAST_SPARE)
    room = max(spare - logit_bytes(prompts, read, limits), budget // _LEAST_SPARE)
    if packing is not None and packing.width > tokens_in_flight(model, room, packing.width, limits):
        packing = None
    keys = pos if packing is None else max(pos, packing.width)
    tokens = tokens_in_flight(model, room, keys, limits)
    if packing is None:
        width = max(window.width for window in windows)
        rows = max(1, min(prompts, tokens // width))
        usual = widest = rows * width
    else:
        rows, width, widest = max(map(len, packing.groups)), packing.width, packing.width
        usual = math.ceil(packing.tokens / len(packing.groups))
    stack = max(1, min(len(heads), tokens // usual))
    while stack > 1 and _in_flight(model, stack * widest, keys, stack * prompts, read, limits) > spare:
        stack -= 1
    stack = min(stack, math.ceil(units / batches_at_least(limits)))
    stack = math.ceil(len(heads) / math.ceil(len(heads) / stack))
    joined = max(1, limits.logit_rows // (stack * prompts))
    joined = min(joined, math.ceil(units / (stack * batches_at_least(limits))))
    plan = Plan(
        units=units,
        blocks=blocks,
        heads=heads,
        places=places,
        prompts=prompts,
        pos=pos,
        width=width,
        stack=stack,
        rows=rows,
        layout=model.backend.layout,
        bytes=resident + _in_flight(model, stack * widest, keys, stack * prompts, read, limits),
        budget=budget,
        on_disk=on_disk,
        ablated=base.ablated,
        groups=None if packing is None else packing.groups,
        joined=joined,
        weights_on_disk=sum(_above(model)[:1]),
        until=None if reading.activation is None else str(reading.activation),
        times=sum(window.width for window in windows) / sum(window.narrowest or window.width for window in windows),
    )
    n_runs = extra_runs * math.ceil(prompts / max(1, tokens_in_run(model, limits, pos) // pos))
    by_waves = plan.passes * bytes_read_by_waves(model, heads, stack, reading)
    return replace(plan, bytes_read=(n_runs + 1) * plan.weights_on_disk + by_waves)


def flops_of_a_pass(plan: Plan, model: ModelCore) -> float:
    """The floating-point operations of one full forward pass of the prompts."""
    cfg, heads = model.model.cfg, model.n_heads + model.n_kv_heads
    mlp = model.backend.d_mlp * (3 if getattr(cfg, "gated_mlp", False) else 2)
    token = model.d_model * (2 * model.d_head * heads + mlp) + 2 * model.n_heads * model.d_head * plan.pos
    return 2.0 * plan.prompts * (plan.pos * model.n_layers * token + model.d_model * model.d_vocab)


def batches_at_least(limits: Limits) -> int:
    """The least number of batches into which the units are cut, so that every worker has some."""
    return 1 if limits.workers is None else BATCHES_A_WORKER * pool_of(limits.workers).replicas


def with_workers(plan: Plan, model: ModelCore, workers: int, setup: float) -> Plan:
    """The plan of a sweep whose units workers share, after each has cached the runs, which takes ``setup`` seconds."""
    at_once = 1 if model.device.type == "cpu" else min(workers, plan.units)
    seconds = None if plan.seconds is None else setup + (plan.seconds - setup) / at_once
    weights = bytes_of(model.backend.module.parameters()) - plan.weights_on_disk
    return replace(plan, workers=workers, model_bytes=weights, seconds=seconds)


def _in_flight(model: ModelCore, tokens: int, keys: int, rows: int, read: int, limits: Limits) -> int:
    """Memory of a wave in bytes: its tokens inside a block, and the logits of its rows."""
    return tokens * token_bytes(model, keys) + logit_bytes(rows, read, limits)


def least_in_flight(model: ModelCore, tokens: Tokens, read: int, limits: Limits) -> int:
    """The least memory that a sweep needs besides its cached runs: with one copy of one prompt at a time."""
    prompts, pos = tokens.ids.shape
    return _base_logits(prompts, read, limits) + _in_flight(model, pos, pos, prompts, read, limits)


def _base_logits(prompts: int, read: int, limits: Limits) -> int:
    """Memory of the base run's logits in bytes: of all prompts, or of as many as are computed together."""
    return 4 * min(prompts * read, max(limits.logits_at_once, read))


def bytes_read_by_waves(model: ModelCore, heads: Sequence[HeadId], stack: int, reading: Reading) -> int:
    """The bytes that waves of ``stack`` heads read: each reads the layers from its first head's on, once."""
    above = [*_above(model), 0]
    return sum(above[layer] - above[reading.blocks] for layer in sorted(head.layer for head in heads)[::stack])


def _above(model: ModelCore) -> list[int]:
    """For each layer, the bytes on disk from this layer on."""
    on_disk = model.backend.on_disk
    sizes = {} if on_disk is None else on_disk.layer_bytes
    return [sum(sizes.get(later, 0) for later in range(layer, model.n_layers)) for layer in range(model.n_layers)]
