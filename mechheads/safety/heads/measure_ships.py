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
from mechheads.heads import HeadLike
from mechheads.interventions.base import site_of
from mechheads.ledger.fingerprints import fingerprint
from mechheads.ledger.sweep_key import NO_STORE, Store
from mechheads.limits import current
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.metrics.basic import kl_divergence
from mechheads.model.model import Model
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.safety.heads.ablations import Ablation
from mechheads.safety.heads.angles import Turn
from mechheads.safety.requests.prompts import Requests, Side, Template


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


@dataclass(frozen=True, eq=False)
class Pass:
    """Which heads of a model are ablated one at a time, and on which prompts.

    Attributes:
        requests: the requests in their template.
        heads: as in ``mh.sweep``.
    """

    model: Model
    requests: Side
    heads: Sequence[HeadLike] | HeadLike | None

    @classmethod
    def of(
        cls, model: Model, requests: Requests, template: Template | None, *, heads: Sequence[HeadLike] | HeadLike | None
    ) -> Pass:
        """A pass over requests as a user gives them.

        Raises:
            ValueError: if ``request_prompts`` rejects them.
        """
        return cls(model, Side.of(model, requests, template), heads)

    def jobs(self, ablations: Sequence[Ablation], store: Store = NO_STORE) -> list[Job]:
        """A job for each ablation.

        All share the intact run, with everything that these ablations read from it, and a plan that covers each. An
        ablation at a site other than z needs the most memory, because every head's new z is kept too.

        Args:
            ablations: kinds of ablation with the same ``group``.
            store: where the finished heads of each ablation are stored.
        """
        sites = {ablation: site_of(ablation.intervention) for ablation in ablations}
        costliest = max(ablations, key=lambda ablation: sites[ablation] != "z")
        groups = costliest.groups(self.model)
        units, way = groups.units(self.heads), costliest.intervention
        spec = Spec(self.requests.prompts, way, kl_divergence, units, seed=current().seed)
        wanted = tuple(dict.fromkeys(sites.values()))
        job = make_ready(self.model, spec, sites=wanted, store=store)
        job = replace(job, together=groups.size)
        return [job if one is costliest else job.intervening(one.intervention, store) for one in ablations]


def measure(
    asked: Pass,
    ablations: Sequence[Ablation],
    *,
    with_kl: bool = False,
    r: int | None = None,
    draws: Float[np.ndarray, "draw prompt"] | None = None,
) -> list[Measured]:
    """Results of ablating each head once in each way: the KL if ``with_kl``, and the angle if ``r`` is given.

    Args:
        ablations: kinds of ablation with the same ``group``; all share the intact run.
        draws: how often each prompt counts in each resample.
    """
    model = asked.model
    if r is not None:
        check_r(r, asked.requests.prompts.tokens(model), model)
    kind, n_draws, done = ShipsKind(with_kl, r, draws), 0 if draws is None else len(draws), 0
    with kind.stored_in(current().store, ablations[0].group) as kept:
        jobs = asked.jobs(ablations, store=kept)
        reading = kind.reading(jobs[0])
        of_angle = {} if r is None else {"r": r, "angle_interval": "95%, jackknife over prompts on the log scale"}
        about = (make_provenance(model, way.about(model), asked.requests.about(model), of_angle) for way in ablations)
        found = [empty(jobs[0], each, n_draws) for each in about]
        with until_interrupted() as interrupts:
            for job, one in zip(jobs, found, strict=True):
                finished = fill(Work(job, kind, UnitRuns(job), reading), kind, one)
                done += len(finished.values)
                stop_if(finished.interrupted)
    interrupts.warn(f"{done} of {len(jobs[0].heads) * len(ablations)} heads")
    of_heads = "all" if asked.heads is None else describe_heads(jobs[0])
    stopped = {"heads": of_heads, "interrupted": interrupts.interrupted}
    return [replace(one, provenance=make_provenance(one.provenance, stopped)) for one in found]


@dataclass(frozen=True)
class ShipsKind:
    """What is measured of each head: its KL if ``with_kl``, its angle if ``r`` is given; see ``measure``."""

    with_kl: bool = False
    r: int | None = None
    draws: Float[np.ndarray, "draw prompt"] | None = None

    def stored_in(self, path: str | PathLike[str] | None, group: str) -> Store:
        """Where what is measured of each head, or group of heads, is stored."""
        draws = None if self.draws is None else fingerprint(self.draws, "draws")
        return Store(path, analysis="ships", with_kl=self.with_kl, r=self.r, draws=draws, group=group)

    def __call__(self, job: Job) -> Work:
        return Work(job, self, UnitRuns(job), self.reading(job))

    def reading(self, job: Job) -> Reading:
        """Reads the values of each head, compared with the job's base run."""
        turn = None
        if self.r is not None:
            turn = Turn(last_states(job.base.final_at(job.at)), self.r, job.tokens.cluster, self.draws)
        return Reading(job.evaluator if self.with_kl else None, turn, self.draws is not None)


@dataclass(frozen=True, eq=False)
class Reading:
    """Reads the values of each head in one row: the KL of each prompt, the angle with its interval, resampled ones."""

    kl: Evaluator | None
    turn: Turn | None
    resampled: bool

    def __call__(self, units: Sequence[Unit], finals: list[Tensor]) -> Values:
        kl = [[]] * len(units) if self.kl is None else self.kl(finals[0])
        return [np.concatenate([one, *self._turned(states)]) for one, states in zip(kl, finals[0], strict=True)]

    def _turned(self, final: Tensor) -> list[np.ndarray]:
        if self.turn is None:
            return []
        states = last_states(final)
        return [np.array(self.turn(states)), *([self.turn.resampled(states)] if self.resampled else [])]


def fill(work: Work, kind: ShipsKind, found: Measured) -> Finished:
    """Measure the heads of a job and store the results."""
    finished = finish(work, batches(work.job), what=f"{len(work.job.heads)} heads")
    n = len(work.job.tokens) if kind.with_kl else 0
    for (head, _), values in finished.values.items():
        at = slice(head.head, head.head + work.job.together)
        if kind.with_kl:
            found.kl[head.layer, at] = values[:n]
        if kind.r is not None:
            found.angle[:, head.layer, at] = values[n : n + 3, None]
            found.resampled[:, head.layer, at] = values[n + 3 :, None]
    return finished


def empty(job: Job, about: dict[str, Any], n_draws: int) -> Measured:
    """A result with nothing measured yet."""
    shape = job.model.n_layers, job.model.n_heads
    return Measured(
        job.tokens,
        np.full((*shape, len(job.tokens)), np.nan),
        np.full((3, *shape), np.nan),
        np.full((n_draws, *shape), np.nan),
        about,
    )


def last_states(final: Tensor) -> Float[np.ndarray, "prompt d_model"]:
    """The last-token states as float64."""
    return final[:, -1].double().cpu().numpy()


def check_r(r: int, tokens: Tokens, model: Model) -> None:
    """Check that the angle between the first r left singular vectors is defined.

    Raises:
        ValueError: if it is not.
    """
    if not 1 <= r <= model.d_model:
        raise ValueError(f"r is {r}; it must be at least 1 and at most d_model, {model.d_model}")
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
