"""Runs in which all heads of a set are changed together, many sets at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine import proved
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.dispatch import Batch, Values
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.memory import tokens_in_flight
from mechheads.engine.report import describe_intervention, warn_of_answers
from mechheads.engine.wavefront import Edit, Wave
from mechheads.engine.work import UnitRuns, Work, compute, edit_of
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.messages.notices import stop_if
from mechheads.metrics import name_of
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.runs.head_tensor import LayerStore
from mechheads.scale.ray_cluster import pool_of


class SetRun:
    """Runs sets of heads whose z is replaced together; each set is a unit, and ``at_once`` share a wave."""

    def __init__(self, job: Job) -> None:
        self.job, plan, run, firsts = job, job.plan, UnitRuns(job), list[Tensor]()
        self._layers = sorted({head.layer for head in job.heads})
        self._new = LayerStore(len(self._layers), len(job.tokens), job.base.stores["z"].on_disk)
        for layer in self._layers:
            changes, first = run.changes([(head, 0) for head in job.heads if head.layer == layer])
            new = job.base.z.layer(layer).transpose(1, 2).clone()
            for head, values, index in changes:
                new[:, :, head.head] = values[:, :, index]
            self._new.add(layer, new)
            firsts.append(first)
        self._first = torch.stack(firsts).amin(0)
        self._ready: tuple[int, Wave, dict[HeadId, Edit]] | None = None
        tokens = tokens_in_flight(job.model, job.spec.limits.memory // 4, plan.pos, job.spec.limits)
        self.at_once = max(1, tokens // (plan.rows * plan.width))

    def __call__(self, sets: Sequence[Set[HeadId]]) -> list[Float[Tensor, "set prompt position d_model"]]:
        parts = []
        for begin in range(0, len(self.job.tokens), self.job.plan.rows):
            wave, edits = self._wave(begin)
            parts.append(wave.run([[edits[head] for head in heads] for heads in sets]))
        return [torch.cat(parts, dim=1)]

    def edits(self, unit: Set[HeadId], prompt: int, entry: int = 0) -> list[proved.PlainHook]:
        """The hooks that change a set in a plain forward pass of a prompt."""
        n = int(self.job.tokens.on_cpu.lengths[prompt])
        return [proved.edit(self.job.model, "z", it, self._new[it.layer][prompt, :n, it.head]) for it in unit]

    def zeroed(self) -> SetRun:
        """The same sets with z set to zero."""
        return SetRun(proved.zero_of(self.job))

    def _wave(self, begin: int) -> tuple[Wave, dict[HeadId, Edit]]:
        """The wave of the prompts from ``begin`` on, and every head's edit in it; the latest is cached."""
        if self._ready is None or self._ready[0] != begin:
            job, rows = self.job, slice(begin, begin + self.job.plan.rows)
            wave, edits = job.wave(rows, job.window(self._first, rows)), dict[HeadId, Edit]()
            for layer in self._layers:
                new = wave.take(self._new[layer])
                edits |= {head: edit_of(head, new[:, :, head.head]) for head in job.heads if head.layer == layer}
            self._ready = begin, wave, edits
        return self._ready[1], self._ready[2]


def _set_effects(job: Job) -> Work:
    """The change of a job's metric with the z of whole sets of heads replaced [prompt]."""
    return Work(job, _set_effects, SetRun(job), lambda units, finals: job.evaluator(finals[0]))


class SetRuns:
    """Computes the metric with the z of whole sets of heads replaced; ``spec.heads`` are those that sets may contain.
    ``at_once`` sets go through the layers together."""

    def __init__(self, runs: CachedRuns, spec: Spec) -> None:
        self.job = make_ready(runs, spec)
        read = self.job.reading.activation
        if read is not None and self.job.site != "z" and self.job.reading.takes(read.head, self.job.site):
            raise ValueError(
                f"metric reads {read}, and an intervention on {self.job.site} would change it in the head itself; use "
                "mh.sweep, which measures one head at a time, or an intervention on z"
            )
        self.base_value: Float[np.ndarray, " prompt"] = self.job.evaluator.base_value.cpu().numpy()
        warn_of_answers(self.job)
        self._work = _set_effects(self.job)
        self.at_once = self._work.run.at_once

    def values(
        self,
        replaced: Sequence[Set[HeadId]],
        done: Callable[[int], object] = lambda n: None,
        into: Float[np.ndarray, "set prompt"] | None = None,
    ) -> Float[np.ndarray, "set prompt"]:
        """The metric with all heads of each set replaced together; an empty set gives the metric of the base run.
        ``done`` gets how many more are finished; ``into`` is filled as values come, even if Ctrl-C stops the work."""
        values = np.full((len(replaced), len(self.base_value)), np.nan) if into is None else into
        rows: dict[frozenset[HeadId], list[int]] = {}
        for i, heads in enumerate(replaced):
            rows.setdefault(frozenset(heads), []).append(i)
        unchanged = rows.pop(frozenset(), [])
        values[unchanged] = self.base_value
        done(len(unchanged))

        def take(some: Sequence[frozenset[HeadId]], of_each: Values) -> None:
            for heads, change in zip(some, of_each, strict=True):
                values[rows[heads]] = self.base_value + change
                done(len(rows[heads]))

        stop_if(compute(self._work, self._batches(list(rows)), take))
        return values

    def _batches(self, sets: Sequence[frozenset[HeadId]]) -> list[Batch]:
        workers, size = self.job.spec.limits.workers, self.at_once
        if workers is not None:
            size = max(1, min(size, len(sets) // pool_of(workers).replicas))
        return [Batch((tuple(sets[start : start + size]),)) for start in range(0, len(sets), size)]

    def provenance(self) -> dict[str, Any]:
        """The provenance that all results of these runs share."""
        return make_provenance(
            self.job.model,
            intervention=describe_intervention(self.job.intervention),
            metric=name_of(self.job.spec.metric),
            prompts=self.job,
            n_prompts=len(self.job.tokens),
        )


def head_set(heads: Iterable[HeadLike], model: Model, name: str) -> tuple[HeadId, ...]:
    """Parse a set of heads, which may be empty."""
    if isinstance(heads, (str, HeadId)) or not isinstance(heads, Iterable):
        raise ValueError(f'{name} is {heads!r}; give a list of heads, such as ["L9H6", "L10H0"]')
    parsed = tuple(sorted(check_head(head, model.n_layers, model.n_heads) for head in heads))
    if twice := [head for head, after in pairwise(parsed) if head == after]:
        raise ValueError(f"{name} contains {twice[0]} twice; name each once")
    return parsed


def set_bar(total: int, what: str) -> Bar:
    """A progress bar that counts sets of heads."""
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go"
    return Bar(total=total, desc=what, leave=False, bar_format=form)
