"""``SafetyJob``, what defines a score of heads, and the pass over its heads from which both Ships are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import Held
from mechheads.engine.dispatch import Values
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Spec, Unit, make_ready
from mechheads.engine.report import describe_given, describe_heads
from mechheads.engine.run import UnitRuns, batches
from mechheads.engine.work import Finished, Work, finish
from mechheads.heads import HeadId, Heads
from mechheads.interventions.basic import Intervention, needs_of, site_of
from mechheads.ledger.key import NO_STORE, Store
from mechheads.limits import current
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.metrics.basic import kl_divergence
from mechheads.model.model import Model
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.safety.heads.ablations import Groups, about_ablation
from mechheads.safety.heads.angles import Rotation
from mechheads.safety.requests.prompts import Side, Sides


@dataclass(frozen=True)
class Measured:
    """The results of one pass over the heads; what was not requested or not reached is NaN.

    ``resampled`` has Generalized Ships of resampled prompts, if requested.
    """

    tokens: Tokens
    kl: Float[np.ndarray, "layer head prompt"]
    angle: Float[np.ndarray, "3 layer head"]
    resampled: Float[np.ndarray, "draw layer head"]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class ShipsKind:
    """What is measured of each head: the KL of each prompt, and the angle between ``r`` singular vectors, unless None.

    For angles of resampled prompts, ``draws`` says how often each prompt counts.
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


_KL = ShipsKind(with_kl=True)


@dataclass(frozen=True, eq=False)
class SafetyJob:
    """Everything that defines a score of heads: a score is a function from a job to values.

    ``kind`` is what a pass after the requests measures, ``measured`` the result of one that other jobs share.
    """

    model: Model
    requests: Side
    intervention: Intervention
    groups: Groups
    heads: Heads | None = None
    look_alikes: Side | None = None
    held: Held = ()
    kind: ShipsKind = _KL
    measured: Measured | None = None

    @property
    def units(self) -> tuple[HeadId, ...]:
        """What is ablated one at a time: heads, or groups by their first heads."""
        return self.groups.units(self.heads)

    @property
    def sides(self) -> Sides:
        """The requests and their look-alikes, one for each."""
        if self.look_alikes is None:
            raise ValueError("look-alikes are missing; give a harmless one for each request")
        sides = Sides(self.requests, self.look_alikes)
        sides.check_pairs()
        return sides

    @cached_property
    def after_requests(self) -> Measured:
        """What one pass over the heads measures after the requests; it runs when it is first read."""
        return self.measured or measure([self])[0]

    @cached_property
    def after_look_alikes(self) -> Measured:
        """The KL of each head after the look-alikes."""
        return measure([replace(self, requests=self.sides.harmless, kind=_KL)])[0]

    def about(self) -> dict[str, Any]:
        """What a result records about the ablation and the requests."""
        about = about_ablation(self.intervention, self.groups) | describe_given(self.held)
        return about | self.requests.about(self.model)


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


def measure(jobs: Sequence[SafetyJob]) -> list[Measured]:
    """What is measured of each head that is ablated once for each job; jobs differ in their interventions alone."""
    first, kind, done = jobs[0], jobs[0].kind, 0
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

    One plan covers all: that of an intervention at a site other than z, for which every head's new z is kept too.
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
    """Raise a ValueError if the angle between the first r left singular vectors is not defined for a job's requests."""
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
