"""Running a race: a job's heads on more and more of its prompts, dropping those that cannot be among the first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
from mechheads.engine.racing import Race
from mechheads.engine.run import Measured, alter, measure, passes
from mechheads.heads import HeadId
from mechheads.interventions.new_z import Altered
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.warn import warn
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values_of_some

AnyScores = TypeVar("AnyScores", bound=HeadScores)


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
        stopped: why the race ended.
    """

    job: Job
    race: Race
    n_prompts: Int[np.ndarray, "layer head"]
    estimate: Float[np.ndarray, "layer head"]
    in_race: list[HeadId]
    failed: list[HeadId] = field(default_factory=list)
    looks: list[tuple[int, int]] = field(default_factory=list)
    stopped: str = ""

    @classmethod
    def start(cls, job: Job, race: Race) -> Raced:
        """A race in which nothing has been measured yet."""
        shape = job.model.n_layers, job.model.n_heads
        return cls(
            np.full((*shape, 1, len(job.tokens)), np.nan),
            job=job,
            race=race,
            n_prompts=np.zeros(shape, dtype=int),
            estimate=np.full(shape, np.nan),
            in_race=list(job.heads),
        )

    @property
    def undefined(self) -> list[HeadId]:
        return self.failed

    def add_round(self, found: Measured, rows: Int[np.ndarray, " row"]) -> None:
        """Add what was measured on some more prompts."""
        for head, place in found.reached:
            self.values[head.layer, head.head, place, rows] = found.values[head.layer, head.head, place]
            self.n_prompts[head.layer, head.head] += len(rows)
        self.reached |= found.reached
        self.interrupted = found.interrupted
        for head in found.undefined:
            self.values[head.layer, head.head] = np.nan
            self.in_race.remove(head)
            self.failed.append(head)

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
        share = float(self.n_prompts.sum() / (len(self.job.heads) * len(self.job.tokens)))
        if progress:
            print(f"race: {self.stopped}; {share:.0%} of the exhaustive measurements", file=sys.stderr)
        data, dims = scores.dataset, ("layer", "head")
        variables: dict[str, Any] = {
            "q_value": (dims, q_values_of_some(data["p_value"].values, dropped)),
            "estimate": (dims, self.estimate),
            "n_prompts": (dims, self.n_prompts),
            "dropped": (dims, dropped),
        }
        about = asdict(self.race) | {
            "looks": [list(look) for look in self.looks],
            "share": share,
            "stopped": self.stopped,
        }
        return type(scores)(data.assign(variables)).with_provenance(race=about, interrupted=self.interrupted)


Side = tuple[Job, Evaluator]
"""A job with one place, and what measures its final states."""


def run_race(job: Job, evaluator: Evaluator, race: Race, *, less: Side | None = None, progress: bool = True) -> Raced:
    """Race the heads of a job with one place; what is in the job's ledger does not run again.

    Args:
        less: a job of the same heads and as many prompts, whose values are subtracted, prompt by prompt.
    """
    scale = evaluator.distance() if job.spec.normalize else 1.0
    n = len(job.tokens)
    labels, clusters = np.unique(job.tokens.cluster, return_inverse=True)
    turn = np.random.default_rng(job.spec.seed).permutation(len(labels))[clusters]
    sides = [(job, evaluator), *([] if less is None else [less])]
    altered = [alter(side, passes(side)[0]) for side, _ in sides]
    found = Raced.start(job, race)
    looks, used = race.looks(len(labels)), 0
    with until_interrupted() as work:
        while looks and found.in_race and not found.interrupted:
            if found.looks and len(found.in_race) <= race.top:
                heads = "head was" if race.top == 1 else f"{race.top} heads were"
                found.stopped = f"the first {heads} settled after {found.looks[-1][0]} of {n} prompts"
                looks = looks[-1:]
            upto = looks.pop(0)
            rows = np.flatnonzero((turn >= used) & (turn < upto))
            at, name = torch.from_numpy(rows).to(job.rows.device), f", clusters {used} to {upto}"
            parts = [(side.some(found.in_race, at, name), judge.some(at)) for side, judge in sides]
            found.looks.append((int((turn < upto).sum()), len(found.in_race)))
            found.add_round(_round(parts, altered, progress), rows)
            used = upto
            if found.in_race and not found.interrupted:
                values = np.stack([found.values[head.layer, head.head, 0] for head in found.in_race])
                sums = np.stack([values[:, turn == cluster].sum(1) for cluster in range(used)], axis=1)
                gone = race.dropped(sums, len(labels))
                found.in_race = [head for head, out in zip(found.in_race, gone, strict=True) if not out]
    found.interrupted |= work.interrupted
    if found.interrupted:
        found.stopped = interrupted_after(f"{found.n_prompts.max()} of {n} prompts")
        warn(f"{found.stopped}; heads that were not dropped have scores from the prompts until then")
    found.stopped = found.stopped or "every prompt was used"
    found.finish(scale)
    return found


def _round(sides: Sequence[Side], altered: Sequence[Altered | None], progress: bool) -> Measured:
    """The values of the first side, less those of the second if there is one."""
    found = measure(*sides[0], altered=altered[0], progress=progress)
    for side, new in zip(sides[1:], altered[1:], strict=True):
        if found.interrupted:
            found.reached.clear()
            break
        less = measure(*side, altered=new, progress=progress)
        found.values -= less.values
        found.reached &= less.reached
        found.interrupted = less.interrupted
    return found
