"""Path patching: the effect of one head on another, or on the logits, through no other head.

It takes two runs (Wang et al. 2022; Goldowsky-Dill et al. 2023). In the first, one sender's z comes from the source
run, every other head's z is frozen, and the inputs of the receivers are recorded. In the second, the receivers of the
base run get these inputs, and everything after them is recomputed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.batches import Batch, Kind, Values
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.frozen_heads import Frozen, MLPs, Receiver, check_frozen
from mechheads.engine.half_precision import with_precision
from mechheads.engine.job import Job, Spec, Unit, given, make_ready
from mechheads.engine.places import Positions, by_place
from mechheads.engine.racing import Race
from mechheads.engine.report import About, describe_heads, describe_positions, report
from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Window
from mechheads.engine.run import Measured, new_z, warn_of_undefined, waves
from mechheads.engine.run_race import Raced, Racing, in_half_precision, run_race
from mechheads.engine.wavefront import Edit, Wave
from mechheads.engine.work import finish
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.basic import Patch
from mechheads.ledger.sweep_key import Store
from mechheads.limits import Budget, Limits, Workers
from mechheads.messages.interrupted import interrupted_after
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.patching.pairs import base_of, check_pairs
from mechheads.patching.receivers import FINAL, Group, check_reached, parse_receivers
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import states_at


@alone
def path_patch(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    receivers: str | Sequence[str] = FINAL,
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Literal["noising", "denoising"] = "noising",
    mlps: MLPs = "recomputed",
    positions: Positions = "all",
    normalize: bool = False,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
    store: str | PathLike[str] | None = None,
    top: int | Race | None = None,
) -> HeadScores:
    """Patch the paths from one head to the receivers, sender by sender.

    Args:
        pairs: clean and corrupted prompts that align token for token.
        receivers: ``"final"``, the residual stream before the final norm, which is the direct path to the logits; or
            the ``q``, ``k`` or ``v`` of heads (``"L26H2.q"``) and the inputs of MLPs (``"L5.mlp"``). All receivers of
            a list are patched together. With grouped-query attention, k and v are patched for this query head only.
        senders: the heads to try; every head by default. A sender that comes before no receiver has no path to them,
            so its score is 0 without a measurement.
        metric: what is measured, as in ``mh.sweep``.
        direction: ``"noising"`` takes the paths of the clean run from the corrupted run: which paths are needed?
            ``"denoising"`` takes the paths of the corrupted run from the clean run: which paths are enough?
        mlps: ``"recomputed"``: paths may go through MLPs; ``"frozen"``: direct edges only.
        positions: where the sender's z changes, as in ``mh.sweep``.
        normalize, budget, seed, progress, workers, store, top: as in ``mh.sweep``.

    Returns:
        metric(patched) - metric(base) of each sender [layer, head(, pos), prompt], in the metric's unit. With
        ``normalize``, it is divided by the mean difference between the source run and the base run. With ``top``,
        what ``mh.sweep`` adds.

    Raises:
        ValueError: if the pairs do not align, a receiver comes before every sender, or an argument is not valid;
            before the sweep starts.

    Wang et al. 2022 (arXiv 2211.00593), section 3.1; Goldowsky-Dill et al. 2023 (arXiv 2304.05969).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> direct = mh.path_patch(model, pairs, senders=["L23H4", "L5H0"], progress=False)
    >>> abs(direct["L23H4"]["score"]) > abs(direct["L5H0"]["score"])
    True
    """
    model, asked, cached = given(model, pairs, "pairs")
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    group = parse_receivers(names, model)
    if len(names) > 1 and FINAL in names:
        raise ValueError(
            f'receivers is {names}; "final" cannot be combined with others: give "final" only, or use mh.path_matrix '
            "for one receiver at a time"
        )
    groups = [tuple(receiver for receiver in group if receiver is not None) or None]
    limits = Limits.of(budget, workers)
    base, race = base_of(direction), Race.of(top)
    spec = Spec(asked, Patch(), as_metric(metric), senders, positions, base, normalize, seed, limits, race)
    question = _Question(f"path patching to {', '.join(names)}, {direction}", "path_patch", names, groups, mlps)
    return _run(model, spec, question, runs=cached, store=store, progress=progress)


@alone
def path_matrix(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    receivers: Sequence[str],
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Literal["noising", "denoising"] = "noising",
    mlps: MLPs = "recomputed",
    normalize: bool = False,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    workers: Workers | None = None,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """Patch the path from every sender to every receiver, one receiver at a time.

    Args:
        receivers: names as in ``mh.path_patch``; ``"final"`` can be one of them.
        senders, metric, direction, mlps, normalize, budget, seed, progress, workers, store: as in ``mh.path_patch``.

    Returns:
        As ``mh.path_patch``, with the further dimension ``receiver``; 0 if there is no path. ``mh.plots.path_matrix``
        draws it.

    Raises:
        ValueError: as in ``mh.path_patch``.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> matrix = mh.path_matrix(
    ...     model, pairs, receivers=["final", "L26H2.q"], senders=["L23H4", "L20H1"], progress=False
    ... )
    >>> matrix.extra_dims
    ('receiver',)
    """
    model, asked, cached = given(model, pairs, "pairs")
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    groups = [None if receiver is None else (receiver,) for receiver in parse_receivers(names, model)]
    limits = Limits.of(budget, workers)
    spec = Spec(asked, Patch(), as_metric(metric), senders, "all", base_of(direction), normalize, seed, limits)
    question = _Question(f"paths from heads to receivers, {direction}", "path_matrix", names, groups, mlps)
    return _run(model, spec, question, runs=cached, store=store, progress=progress)


@dataclass(frozen=True)
class _Question:
    """Which paths to patch.

    Attributes:
        name, kind: the name and the kind of the result.
        receivers: the names of the receivers; ``groups``: the receivers that are replaced together.
    """

    name: str
    kind: str
    receivers: list[str]
    groups: Sequence[Group]
    mlps: MLPs

    def check(self, model: Model, spec: Spec) -> None:
        check_pairs(spec.prompts, "path patching")
        if self.mlps not in ("recomputed", "frozen"):
            raise ValueError(f'mlps is {self.mlps!r}; choose "recomputed" or "frozen"')
        check_reached([receiver for group in self.groups for receiver in group or ()], spec.heads, model)


def _run(
    model: Model,
    spec: Spec,
    question: _Question,
    *,
    runs: CachedRuns | None = None,
    store: str | PathLike[str] | None = None,
    progress: bool = True,
) -> HeadScores:
    """The result: every sender's effect through every group of receivers."""
    question.check(model, spec)
    groups = [[FINAL] if group is None else [str(receiver) for receiver in group] for group in question.groups]
    with Store(store, receivers=groups, mlps=question.mlps) as kept:
        job = make_ready(model, spec, runs=runs, store=kept, progress=progress)
        evaluator = Evaluator.of(job)
        warn_of_answers(job)
        check_frozen(job.base, job.at)
        raced = None
        if spec.race is None:
            scale = evaluator.distance() if spec.normalize else 1.0
            values, reached, interrupted = _PathWork(job, evaluator, question).measure(progress)
            if interrupted:
                warn(interrupted_after(f"{len(reached)} of {len(job.units)} senders", "the rest are NaN"))
            values /= scale
            undefined = sorted({head for head, at in reached if np.isnan(values[head.layer, head.head, :, at]).any()})
        else:
            raced = _race(job, evaluator, question, spec.race, progress)
            values, interrupted, undefined = raced.values[:, :, None], raced.interrupted, raced.undefined
    warn_of_undefined(spec.metric, undefined)
    values, places = by_place(job.places, values)
    more = {
        "direction": "noising" if spec.base == "clean" else "denoising",
        "mlps": question.mlps,
        "positions": describe_positions(job),
        "senders": describe_heads(job),
        "interrupted": interrupted,
        "receivers": question.receivers,
        "normalize": spec.normalize,
    }
    one = question.kind == "path_patch"
    extra = places if one else {"receiver": question.receivers}
    about = About(question.name, question.kind, share="share of the difference", extra=extra, more=more)
    result = report(job, values[:, :, 0] if one else values, evaluator, about)
    if raced is not None:
        result = raced.result(result, progress)

    def again(other: Model, sample: Sequence[HeadId]) -> HeadScores:
        alone = replace(spec, heads=sample, race=None, limits=spec.limits.in_one_process)
        return _run(other, alone, question, progress=False)

    return with_precision(model, result, again)


@dataclass(frozen=True, eq=False)
class _PathWork:
    """The change of the metric along every path, for some senders at a time [group, row]."""

    job: Job
    evaluator: Evaluator
    question: _Question

    @classmethod
    def of(cls, question: _Question, job: Job) -> _PathWork:
        return cls(job, Evaluator.of(job), question)

    @property
    def kind(self) -> Kind:
        return partial(_PathWork.of, self.question)

    def some(self, job: Job) -> _PathWork:
        return replace(self, job=job, evaluator=self.evaluator.some(job.rows))

    def batches(self) -> list[Batch]:
        """The senders of each wave; more than in a sweep if only the read positions are computed."""
        job, more = self.job, 1
        if not self._paths.receivers and job.spec.limits.workers is None:
            more = max(1, job.plan.width // job.at.shape[1])
        if job.ledger is not None:
            more = job.ledger.remember(f"paths{job.part}", more)
        places = range(len(job.places))
        return [Batch((tuple(wave),)) for wave in waves(job, places, more * job.plan.stack)]

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[list[Unit], Values]]:
        for batch in batches:
            finals = self.job.chunks.run(self._paths.run, batch.units)
            yield batch.units, np.stack([self.evaluator(final) for final in finals], axis=1)

    @cached_property
    def _paths(self) -> _Paths:
        return _Paths(self.job, self.question.groups, self.question.mlps)

    def measure(self, progress: bool) -> tuple[Float[np.ndarray, "layer head group place row"], set[Unit], bool]:
        """The changes, the units that were reached, and whether Ctrl-C stopped the work."""
        job = self.job
        shape = (job.model.n_layers, job.model.n_heads, len(self.question.groups), len(job.places), len(job.rows))
        values = np.full(shape, np.nan)
        found = finish(self, what=f"paths from {len(job.heads)} heads", progress=progress)
        for (head, place), change in found.values.items():
            values[head.layer, head.head, :, place] = change
        return values, set(found.values), found.interrupted


def _race(job: Job, evaluator: Evaluator, question: _Question, race: Race, progress: bool) -> Raced:
    quick = in_half_precision(job, race, progress)
    early = None if quick is None else Racing(_PathWork(*quick, question), _to_one_group)
    return run_race(Racing(_PathWork(job, evaluator, question), _to_one_group), race, early=early, progress=progress)


def _to_one_group(work: _PathWork, progress: bool) -> Measured:
    """The effects through the only group of receivers."""
    values, reached, interrupted = work.measure(progress)
    return Measured(values[:, :, 0], reached, interrupted)


class _Paths:
    """Does both runs of path patching, for some senders at a time."""

    def __init__(self, job: Job, groups: Sequence[Group], mlps: MLPs) -> None:
        self.job, self.groups = job, groups
        self.mlps: MLPs = mlps
        self.receivers = sorted({r for group in groups if group for r in group}, key=str)

    def run(self, units: Sequence[Unit]) -> list[Float[Tensor, "sender prompt position d_model"]]:
        """The final states of the second run, for each group of receivers."""
        news, starts = zip(*(new_z(self.job, head, place, None) for head, place in units), strict=True)
        first = torch.stack(starts).amin(0)
        parts = []
        for rows in self.job.rows.split(self.job.plan.rows):
            senders = [(head, new[rows]) for (head, _), new in zip(units, news, strict=True)]
            parts.append(self._some_prompts(rows, senders, first[rows]))
        return [torch.cat(of_group, dim=1) for of_group in zip(*parts, strict=True)]

    def _some_prompts(self, rows: Tensor, senders: Sequence[tuple[HeadId, Tensor]], start: Tensor) -> list[Tensor]:
        job, at = self.job, self.job.at[rows]
        pos = job.tokens.ids.shape[1]
        finals: dict[Group, Tensor] = {}
        if None in self.groups:
            read = [(head, states_at(new, at)) for head, new in senders]
            arrived = Frozen(job.base, rows, at, self.mlps).run(read, final=True)
            finals[None] = arrived.final  # type: ignore[assignment]
        if self.receivers:
            window = Window.from_start(start, at, layout_of(job.model), pos)
            taken = [(head, window.take(new)) for head, new in senders]
            inputs = Frozen(job.base, rows, window.positions, self.mlps).run(taken, self.receivers).inputs
            wave, unchanged = Wave(job.base, rows, window), job.base.final_at(job.at)[rows]
            for group in self.groups:
                if group is not None:
                    finals[group] = _second_run(wave, unchanged, len(senders), group, inputs)
        return [finals[group] for group in self.groups]


def _second_run(
    wave: Wave, unchanged: Tensor, senders: int, group: tuple[Receiver, ...], inputs: dict[Receiver, Tensor]
) -> Float[Tensor, "sender prompt position d_model"]:
    """Final states of the base run with the inputs of a group of receivers replaced; unchanged without a path."""
    copies = [
        [Edit(r.layer, r.site, r.head, inputs[r][i]) for r in group if r in inputs and i < len(inputs[r])]
        for i in range(senders)
    ]
    final = unchanged.expand(senders, *unchanged.shape).clone()
    if reached := [i for i, copy in enumerate(copies) if copy]:
        final[reached] = wave.run([copies[i] for i in reached])
    return final
