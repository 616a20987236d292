"""Running a race: a job's heads on more and more of its prompts, dropping those that cannot be among the first."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
from mechheads.engine.racing import Race
from mechheads.engine.run import Measured, SweepWork, measure
from mechheads.heads import HeadId
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.warn import warn
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values_of_some

AnyScores = TypeVar("AnyScores", bound=HeadScores)
Estimates = Float[np.ndarray, "layer head prompt"]


@dataclass(kw_only=True)
class Raced(Measured):
    """What a race has measured.

    Attributes:
        job: whose heads race.
        race: what was asked for.
        n_prompts: on how many prompts each head was measured.
        estimate: each head's mean over these prompts.
        in_race: the heads that were not dropped.
        failed: heads for which the metric was not finite.
        looks: for each look, the number of prompts used so far, and of heads measured.
        estimates: what was known of the values before they were measured.
        measurements: how often a head was measured on a prompt.
        stopped: why the race ended.
    """

    job: Job
    race: Race
    n_prompts: Int[np.ndarray, "layer head"]
    estimate: Float[np.ndarray, "layer head"]
    in_race: list[HeadId]
    failed: list[HeadId] = field(default_factory=list)
    looks: list[tuple[int, int]] = field(default_factory=list)
    estimates: Estimates | None = None
    measurements: int = 0
    stopped: str = ""

    @classmethod
    def start(cls, job: Job, race: Race, estimates: Estimates | None = None) -> Raced:
        """A race in which nothing has been measured yet."""
        shape = job.model.n_layers, job.model.n_heads
        return cls(
            np.full((*shape, 1, len(job.tokens)), np.nan),
            job=job,
            race=race,
            n_prompts=np.zeros(shape, dtype=int),
            estimate=np.full(shape, np.nan),
            in_race=list(job.heads),
            estimates=estimates,
        )

    @property
    def undefined(self) -> list[HeadId]:
        return self.failed

    def add_round(self, found: Measured, rows: Int[np.ndarray, " row"]) -> None:
        """Add what was measured on some more prompts."""
        for head, place in found.reached:
            self.values[head.layer, head.head, place, rows] = found.values[head.layer, head.head, place]
            self.n_prompts[head.layer, head.head] += len(rows)
        self.measurements += len(found.reached) * len(rows)
        self.reached |= found.reached
        self.interrupted = found.interrupted
        for head in found.undefined:
            self.values[head.layer, head.head] = np.nan
            self.in_race.remove(head)
            self.failed.append(head)

    def sums(self, turn: Int[np.ndarray, " prompt"], used: int) -> Float[np.ndarray, "head cluster"]:
        """The sum of the values of each head in the race over the prompts of each cluster used so far."""
        return self._sums(self.values[:, :, 0], turn, used)

    def gone(self, turn: Int[np.ndarray, " prompt"], used: int) -> Bool[np.ndarray, " head"]:
        """Which heads in the race can no longer be among the first."""
        clusters = int(turn.max()) + 1
        estimates = None if self.estimates is None else self._sums(self.estimates, turn, clusters)
        return self.race.dropped(self.sums(turn, used), clusters, estimates)

    def _sums(
        self, values: Float[np.ndarray, "layer head prompt"], turn: Int[np.ndarray, " prompt"], used: int
    ) -> Float[np.ndarray, "head cluster"]:
        of_heads = np.stack([values[head.layer, head.head] for head in self.in_race])
        return np.stack([of_heads[:, turn == cluster].sum(1) for cluster in range(used)], axis=1)

    def finish(self, scale: float) -> None:
        """Normalise, and leave only the heads that were not dropped with values."""
        self.values /= scale
        self.estimate = mean_over_prompts(self.values)[:, :, 0]
        for head in set(self.job.heads) - set(self.in_race):
            self.values[head.layer, head.head] = np.nan

    def result(self, scores: AnyScores, progress: bool) -> AnyScores:
        """The scores, with how much of the exhaustive sweep they took and which heads were dropped."""
        dropped = np.zeros(self.n_prompts.shape, dtype=bool)
        for head in set(self.job.heads) - {*self.in_race, *self.failed}:
            dropped[head.layer, head.head] = True
        share = self.measurements / (len(self.job.heads) * len(self.job.tokens))
        if progress:
            print(f"race: {self.stopped}; {share:.0%} of the exhaustive measurements", file=sys.stderr)
        data, dims, size = scores.dataset, ("layer", "head"), self.job.together
        each = {"estimate": self.estimate, "n_prompts": self.n_prompts, "dropped": dropped}
        each = {name: np.repeat(some[:, ::size], size, axis=1) for name, some in each.items()}
        variables: dict[str, Any] = {name: (dims, some) for name, some in each.items()}
        variables["q_value"] = (dims, q_values_of_some(data["p_value"].values, each["dropped"]))
        about = asdict(self.race) | {
            "looks": [list(look) for look in self.looks],
            "share": share,
            "stopped": self.stopped,
        }
        if self.estimates is not None:
            about["estimates"] = "attribution"
        return type(scores)(data.assign(variables)).with_provenance(race=about, interrupted=self.interrupted)


@runtime_checkable
class Racer(Protocol):
    """What measures some heads of a job with one place on some of its prompts."""

    @property
    def job(self) -> Job: ...

    @property
    def evaluator(self) -> Evaluator: ...

    def measure(self, heads: Sequence[HeadId], rows: Int[Tensor, " row"], part: str, progress: bool) -> Measured:
        """Measure some heads on some prompts; ``part`` is the name of these prompts in the job's ledger."""
        ...


@runtime_checkable
class RacedWork(Protocol):
    """Work that can be done for some of a job's heads and prompts."""

    @property
    def job(self) -> Job: ...

    @property
    def evaluator(self) -> Evaluator: ...

    def some(self, job: Job) -> Any:
        """The same work for a part of the job."""
        ...


@dataclass(frozen=True, eq=False)
class Racing:
    """Races by some work; ``measured`` does it, and is told whether to show a progress bar."""

    work: RacedWork
    measured: Callable[[Any, bool], Measured]

    @classmethod
    def by_sweep(cls, job: Job, evaluator: Evaluator) -> Racing:
        """Races by a sweep."""
        return cls(SweepWork.of(job, evaluator), lambda work, progress: measure(work, progress=progress))

    @property
    def job(self) -> Job:
        return self.work.job

    @property
    def evaluator(self) -> Evaluator:
        return self.work.evaluator

    def measure(self, heads: Sequence[HeadId], rows: Int[Tensor, " row"], part: str, progress: bool) -> Measured:
        return self.measured(self.work.some(self.job.some(heads, rows, part)), progress)


@dataclass(frozen=True, eq=False)
class Difference:
    """Races by the values of one racer less those of another one with as many prompts, prompt by prompt."""

    racer: Racer
    less: Racer

    @property
    def job(self) -> Job:
        return self.racer.job

    @property
    def evaluator(self) -> Evaluator:
        return self.racer.evaluator

    def measure(self, heads: Sequence[HeadId], rows: Int[Tensor, " row"], part: str, progress: bool) -> Measured:
        found = self.racer.measure(heads, rows, part, progress)
        if found.interrupted:
            found.reached.clear()
            return found
        less = self.less.measure(heads, rows, part, progress)
        found.values -= less.values
        found.reached &= less.reached
        found.interrupted = less.interrupted
        return found


def run_race(
    racer: Racer,
    race: Race,
    *,
    estimates: Estimates | None = None,
    progress: bool = True,
) -> Raced:
    """Race the heads of a job; what is in the job's ledger does not run again.

    Args:
        estimates: estimates of what is measured, if they are known already.
    """
    job, n = racer.job, len(racer.job.tokens)
    scale = racer.evaluator.distance() if job.spec.normalize else 1.0
    labels, clusters = np.unique(job.tokens.cluster, return_inverse=True)
    turn = np.random.default_rng(job.spec.seed).permutation(len(labels))[clusters]
    found = Raced.start(job, race, estimates)
    looks, used = race.looks(len(labels)), 0
    with until_interrupted() as work:
        while looks and found.in_race and not found.interrupted:
            if found.looks and len(found.in_race) <= race.top:
                heads = "head was" if race.top == 1 else f"{race.top} heads were"
                found.stopped = f"the first {heads} settled after {found.looks[-1][0]} of {n} prompts"
                looks = looks[-1:]
            upto = looks.pop(0)
            rows = np.flatnonzero((turn >= used) & (turn < upto))
            at, part = torch.from_numpy(rows).to(job.rows.device), f", clusters {used} to {upto}"
            found.looks.append((int((turn < upto).sum()), len(found.in_race)))
            found.add_round(racer.measure(found.in_race, at, part, progress), rows)
            used = upto
            if found.in_race and not found.interrupted:
                out = found.gone(turn, used)
                found.in_race = [head for head, gone in zip(found.in_race, out, strict=True) if not gone]
    found.interrupted |= work.interrupted
    if found.interrupted:
        found.stopped = interrupted_after(f"{found.n_prompts.max()} of {n} prompts")
        warn(f"{found.stopped}; heads that were not dropped have scores from the prompts until then")
    found.stopped = found.stopped or "every prompt was used"
    found.finish(scale)
    return found
