"""One pass over the heads: each is ablated once, and Ships and Generalized Ships are computed from the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.dispatch import Values
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Spec, Unit, make_ready
from mechheads.engine.report import describe_heads
from mechheads.engine.run import UnitRuns, batches
from mechheads.engine.work import Finished, Work, finish
from mechheads.interventions.base import needs_of, site_of
from mechheads.ledger.key import NO_STORE, Store
from mechheads.limits import current
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.metrics.basic import kl_divergence
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.safety.heads.ablations import SafetyJob
from mechheads.safety.heads.angles import Rotation


@dataclass(frozen=True)
class Measured:
    """The results of one pass over the heads; what was not requested or not reached is NaN.

    Attributes:
        resampled: Generalized Ships of resampled prompts, if requested.
    """

    tokens: Tokens
    kl: Float[np.ndarray, "layer head prompt"]
    angle: Float[np.ndarray, "3 layer head"]
    resampled: Float[np.ndarray, "draw layer head"]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class ShipsKind:
    """What is measured of each head.

    Attributes:
        with_kl: whether the KL of each prompt is measured.
        r: how many singular vectors the angle compares; None for no angle.
        draws: how often each prompt counts in each resample, for angles of resampled prompts.
    """

    with_kl: bool = False
    r: int | None = None
    draws: Float[np.ndarray, "draw prompt"] | None = None

    def stored_in(self, path: str | PathLike[str] | None, group: str) -> Store:
        """Where what is measured of each head, or group of heads, is stored."""
        return Store(path, analysis="ships", with_kl=self.with_kl, r=self.r, draws=self.draws, group=group)

    def __call__(self, job: Job) -> Work:
        return Work(job, self, UnitRuns(job), self.reading(job))

    def reading(self, job: Job) -> Reading:
        """Reads the values of each head, compared with the job's base run."""
        rotation = None
        if self.r is not None:
            rotation = Rotation(last_states(job.base.final_at(job.at)), self.r, job.tokens.cluster, self.draws)
        return Reading(job.evaluator if self.with_kl else None, rotation, self.draws is not None)


@dataclass(frozen=True, eq=False)
class Reading:
    """Reads the values of each head in one row: the KL of each prompt, the angle with its interval, resampled ones."""

    kl: Evaluator | None
    rotation: Rotation | None
    resampled: bool

    def __call__(self, units: Sequence[Unit], finals: list[Tensor]) -> Values:
        kl = [[]] * len(units) if self.kl is None else self.kl(finals[0])
        return [np.concatenate([one, *self._angles(states)]) for one, states in zip(kl, finals[0], strict=True)]

    def _angles(self, final: Tensor) -> list[np.ndarray]:
        if self.rotation is None:
            return []
        states = last_states(final)
        return [np.array(self.rotation(states)), *([self.rotation.resampled(states)] if self.resampled else [])]


def measure(jobs: Sequence[SafetyJob], kind: ShipsKind) -> list[Measured]:
    """What is measured of each head that is ablated once for each job.

    Args:
        jobs: jobs that differ in their interventions alone, so that all share the intact run.

    Raises:
        ValueError: if the angle is not defined.
    """
    first, done = jobs[0], 0
    if kind.r is not None:
        check_r(kind.r, first)
    of_angle = {} if kind.r is None else {"r": kind.r, "angle_interval": "95%, jackknife over prompts on the log scale"}
    with kind.stored_in(current().store, first.groups.name) as store:
        sweeps = ready(jobs, store)
        reading = kind.reading(sweeps[0])
        every = [empty(sweeps[0], kind, make_provenance(job.model, job.about(), of_angle)) for job in jobs]
        with until_interrupted() as interrupts:
            for sweep, measured in zip(sweeps, every, strict=True):
                finished = fill(Work(sweep, kind, UnitRuns(sweep), reading), kind, measured)
                done += len(finished.values)
                stop_if(finished.interrupted)
    interrupts.warn(f"{done} of {len(sweeps[0].heads) * len(jobs)} heads")
    heads = "all" if first.heads is None else describe_heads(sweeps[0])
    about = {"heads": heads, "interrupted": interrupts.interrupted}
    return [replace(measured, provenance=make_provenance(measured.provenance, about)) for measured in every]


def ready(jobs: Sequence[SafetyJob], store: Store = NO_STORE) -> list[Job]:
    """The sweep of each job: of the same intact run, with everything that the interventions read from it.

    One plan covers all. An intervention at a site other than z needs the most memory, because every head's new z is
    kept too.
    """
    costliest = next((job for job in jobs if site_of(job.intervention) != "z"), jobs[0])
    read = [site for job in jobs for site in (site_of(job.intervention), *needs_of(job.intervention))]
    prompts, seed = costliest.requests.prompts, current().seed
    spec = Spec(prompts, costliest.intervention, kl_divergence, costliest.units, seed=seed, held=costliest.held)
    sweep = make_ready(costliest.model, spec, sites=tuple(dict.fromkeys(read)), store=store)
    sweep = replace(sweep, together=costliest.groups.size)
    return [sweep if job is costliest else sweep.intervening(job.intervention, store) for job in jobs]


def fill(work: Work, kind: ShipsKind, measured: Measured) -> Finished:
    """Measure the heads of a sweep and store the results."""
    finished = finish(work, batches(work.job), what=f"{len(work.job.heads)} heads")
    n = len(work.job.tokens) if kind.with_kl else 0
    for (head, _), values in finished.values.items():
        at = slice(head.head, head.head + work.job.together)
        if kind.with_kl:
            measured.kl[head.layer, at] = values[:n]
        if kind.r is not None:
            measured.angle[:, head.layer, at] = values[n : n + 3, None]
            measured.resampled[:, head.layer, at] = values[n + 3 :, None]
    return finished


def empty(sweep: Job, kind: ShipsKind, about: dict[str, Any]) -> Measured:
    """A result with nothing measured yet."""
    shape = sweep.model.n_layers, sweep.model.n_heads
    return Measured(
        sweep.tokens,
        np.full((*shape, len(sweep.tokens)), np.nan),
        np.full((3, *shape), np.nan),
        np.full((0 if kind.draws is None else len(kind.draws), *shape), np.nan),
        about,
    )


def last_states(final: Tensor) -> Float[np.ndarray, "prompt d_model"]:
    """The last-token states as float64."""
    return final[:, -1].double().cpu().numpy()


def check_r(r: int, job: SafetyJob) -> None:
    """Check that the angle between the first r left singular vectors is defined for a job's requests.

    Raises:
        ValueError: if it is not.
    """
    tokens, d_model = job.requests.prompts.tokens(job.model), job.model.d_model
    if not 1 <= r <= d_model:
        raise ValueError(f"r is {r}; it must be at least 1 and at most d_model, {d_model}")
    different = len(set(map(tuple, tokens.unpadded)))
    if different == 1 and len(tokens) > 1:
        raise ValueError(
            f"all {len(tokens)} prompts are identical, so the angle of Generalized Ships is undefined; "
            "give different prompts"
        )
    if different <= r:
        raise ValueError(
            f"r is {r}, but the number of different prompts is {different}; Generalized Ships needs more prompts "
            "than r: with fewer the singular vectors span the same space in every run"
        )
