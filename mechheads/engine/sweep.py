"""Sweeps: one intervention on every head, one head at a time, measured by one metric.

A new ``z`` at layer l and position p changes nothing below l and nothing before p. So the base run is cached once.
Changed copies of it join a wave at their heads' layers, compute the positions from p on, and unembed only the
positions that the metric reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns, Given, ablated_heads
from mechheads.engine.job import Job, Positions, Spec, Unit, by_place, make_ready, resolve
from mechheads.engine.memory import UNSEEN, Cost
from mechheads.engine.plan import VALUE_BYTES, Plan, bytes_read_by_waves, flops_of_a_pass, with_workers
from mechheads.engine.proved import prove_wave
from mechheads.engine.report import Metadata, describe_intervention, report, warn_of_answers
from mechheads.engine.work import UnitRuns, batches, effects, measure, passes, waves
from mechheads.heads import HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.ledger.key import Store
from mechheads.limits import current
from mechheads.metrics import Metric, as_metric, kl_divergence, name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Side
from mechheads.results.scores import HeadScores
from mechheads.scale.ray_cluster import pool_of

_TRIED_ON_DISK = 16
"""How many units of a wave are run for a plan at most, if weights are on disk."""


@analysis
def sweep(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    intervention: InterventionLike,
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Side = "clean",
    normalize: bool = False,
    given: Given | None = None,
) -> HeadScores:
    """Apply an intervention to one head at a time and measure what it does.

    Args:
        prompts: prompts, or pairs if the intervention reads the source run.
        intervention: computes the head's new activation (see ``mechheads.interventions.basic``), or a name:
            ``"patch"``, ``"zero"``, ``"mean"``, ``"resample"``, ``"uniform"``, ``"undifferentiated"`` or ``"scaling"``.
        metric: a function, or the name of a built-in metric such as "log_prob".
        heads: the heads to try; every head by default.
        positions: ``"all"``; ``"each"`` token on its own (adds the dimension ``pos``); the name of one position, or the
            text of a token that each prompt has once; or a list of these and of token indices (adds ``pos`` with these
            labels). For ``k`` and ``v`` these are the positions attended to, otherwise the positions that attend.
        base: which side of the pairs is changed; the other side is the source run.
        normalize: divide by the difference between the two runs, averaged over prompts: 0 is no effect, 1 is the
            whole difference.
        given: heads that are ablated all the time, in every run: to zero, or a dict with the intervention for each,
            such as ``{"L23H4": "mean"}``. Their z is computed once, from the intact runs, and stays the same whatever
            else is changed. Both runs of pairs are of the model without these heads; ``"patch"`` ablates them in
            the base run alone. They are left out: they have no score.

    Returns:
        metric(intervened) - metric(base) [layer, head(, pos), prompt], in the metric's unit, with p values against
        the metric's ``null``. After Ctrl-C it has the heads that were finished; the others are NaN and listed in
        ``.missing``.

    Raises:
        ValueError: if heads, positions, prompts, metric or intervention are not valid; before the sweep starts.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Negate:
    ...     def __call__(self, z, context):
    ...         return -z
    >>> effect = mh.sweep(model, ["The capital of France is"], intervention=Negate(), heads="L23H4", progress=False)
    >>> bool(effect.scores.sel(layer=23, head=4) > 0)
    True
    """
    runs = resolve(model, prompts)
    rule, ablated = as_intervention(intervention), ablated_heads(given, runs.model)
    spec = Spec(runs.prompts, rule, as_metric(metric), heads, positions, base, normalize, ablated=ablated)
    return run_spec(runs, spec, Metadata(f"{name_of(rule)}, {name_of(spec.metric)}", "sweep"))


def run_spec(runs: CachedRuns, spec: Spec, metadata: Metadata) -> HeadScores:
    """Run a sweep from its request to its result."""
    with Store(current().store) as store:
        job = make_ready(runs, spec, store)
        work = effects(job)
        warn_of_answers(job)
        measured = measure(work, batches(job))
    more = {
        "intervention": describe_intervention(spec.intervention),
        "base": spec.base if isinstance(spec.prompts, PromptPairs) else None,
        "normalize": spec.normalize,
        "interrupted": measured.interrupted,
    }
    values, extra = by_place(job.places, measured.heads)
    return report(job, values, replace(metadata, extra=extra, more=more))


@analysis
def plan(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    intervention: InterventionLike,
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    base: Side = "clean",
    given: Given | None = None,
) -> Plan:
    """Estimate what a sweep with these arguments would cost, before running it.

    Runs the prompts once and a wave of heads from the middle layers twice: once to count the memory, tensor by
    tensor, and the operations, and once to measure the time. Workers are not started.

    Args:
        model, prompts, intervention, metric, heads, positions, base, given: as in ``mh.sweep``.

    Returns:
        The plan. Printed, it shows the computation, the memory that it takes, in each worker, and the time.

    Raises:
        ValueError: if the arguments are not valid.

    >>> heads = ["L23H4", "L5H0"]
    >>> print(mh.plan(model, ["The capital of France is"], intervention=mh.Zero(), heads=heads))  # doctest: +ELLIPSIS
    2 units (2 heads x 1 place, 1 prompt of up to 5 tokens)
    ...
    """
    runs, limits = resolve(model, prompts), current().limits
    model, rule = runs.model, as_intervention(intervention)
    ablated = ablated_heads(given, model)
    spec = Spec(runs.prompts, rule, as_metric(metric), heads, positions, base, limits=limits, ablated=ablated)
    spec.check(model)  # not counted: a model's sites are tried once for all sweeps
    with Cost() as cost:
        # workers run the prompts of a job again
        job = make_ready(runs if limits.workers is None else CachedRuns(model, runs.prompts), spec)
        evaluator, run, every = job.evaluator, UnitRuns(job), passes(job.places, job.site)
        middle, prepared = every[len(every) // 2], cost.flops
        run.all_new_z(middle[0])
        altering = cost.flops - prepared
        evaluator.value(evaluator.base_states.expand(job.plan.stack, -1, -1, -1))  # cached between waves
        units, before = _middle_wave(job, middle), cost.flops
        finals = job.chunks.run(run, units)
        evaluator(finals[0])
        wave = cost.flops - before
        prove_wave(job, run, units, finals)
        proving = cost.flops - before - wave
    waved = proving + wave * job.plan.blocks / sum(map(job.reading.cost_of, units))
    start, on_disk, run = time.perf_counter(), job.model.backend.on_disk, UnitRuns(job)
    run.all_new_z(middle[0])
    altered, read = time.perf_counter(), 0.0 if on_disk is None else on_disk.seconds
    evaluator(job.chunks.run(run, units)[0])
    computing, reading = time.perf_counter() - altered, 0.0
    if on_disk is not None:
        computing -= on_disk.seconds - read
        bytes_read = job.plan.passes * bytes_read_by_waves(model, job.plan.heads, job.plan.stack, job.reading)
        reading = (bytes_read + job.plan.weights_on_disk) * on_disk.seconds / max(1, on_disk.bytes_read)
    most = cost.peak + UNSEEN + VALUE_BYTES * job.plan.units * job.plan.prompts
    flops = prepared + altering * len(every) + waved
    estimate = replace(
        job.plan,
        flops=flops,
        forwards=flops / flops_of_a_pass(job.plan, model),
        seconds=job.seconds + reading + (altered - start) * len(every) + computing * waved / max(1, wave),
        bytes=most if on_disk is None else max(most, job.plan.bytes),
    )
    if limits.workers is not None:
        estimate = with_workers(estimate, model, pool_of(limits.workers).replicas, job.seconds)
    return estimate


def _middle_wave(job: Job, places: Sequence[int]) -> Sequence[Unit]:
    """A wave of heads from the middle layers; with weights on disk, when a wave may have all units, a part of it."""
    tried = list(waves(job.measured, places, job.plan.stack))
    units = tried[len(tried) // 2]
    return units if job.model.backend.on_disk is None else units[:: math.ceil(len(units) / _TRIED_ON_DISK)]
