"""One pass over the heads: each is ablated once, and Ships and Generalized Ships both read that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadId, HeadLike
from mechheads.interventions import site_of
from mechheads.jobs import Job, prepare
from mechheads.judge import Judge
from mechheads.metrics import kl_divergence
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.prompts import Prompts
from mechheads.safety.ablations import Ablation
from mechheads.safety.angles import Turn
from mechheads.safety.requests import Requests, Template, request_prompts
from mechheads.sweeps import finals
from mechheads.tokens import Tokens


@dataclass(frozen=True)
class Measured:
    """What one pass over the heads found; what was not asked for, or not reached, stays NaN.

    Attributes:
        resampled: Generalized Ships of resampled prompts, where that was asked for.
    """

    tokens: Tokens
    kl: Float[np.ndarray, "layer head prompt"]
    angle: Float[np.ndarray, "3 layer head"]
    resampled: Float[np.ndarray, "draw layer head"]
    provenance: dict[str, Any]


def measure(
    model: Model,
    requests: Requests,
    ablations: Sequence[Ablation],
    *,
    template: Template,
    heads: Sequence[HeadLike] | HeadLike | None,
    budget: int | str | None,
    progress: bool,
    with_kl: bool = False,
    r: int | None = None,
    draws: Float[np.ndarray, "draw prompt"] | None = None,
) -> list[Measured]:
    """Ablate each head once in each way; take from these runs the KL, if asked for, and with ``r`` the angle.

    All ablations, which have one ``group``, share the intact run. ``draws`` says how often each prompt counts in each
    resample.
    """
    prompts = request_prompts(model, requests, template)
    if r is not None:
        check_r(r, prompts.tokens(model), model)
    used = "prompts as given" if isinstance(requests, Prompts) else template
    job = prepare_ablations(model, prompts, ablations, heads=heads, budget=budget, progress=progress)
    judge = Judge(kl_divergence, job.base) if with_kl else None
    turn = None if r is None else Turn(last_states(job.base.final_at(job.at)), r, job.tokens.cluster, draws)
    found = []
    for ablation in ablations:
        about = job.model.provenance() | ablation.about(model) | _about(job, used, r)
        found.append(empty(job, about, 0 if draws is None else len(draws)))
    done = 0
    try:
        for ablation, one in zip(ablations, found, strict=True):
            for _ in fill(replace(job, intervention=ablation.intervention), one, judge, turn, progress):
                done += 1
    except KeyboardInterrupt:
        wanted = len(job.heads) * len(ablations)
        warn(f"interrupted after {done} of {wanted} heads; the rest are NaN")
    return found


def prepare_ablations(
    model: Model,
    prompts: Prompts,
    ablations: Sequence[Ablation],
    *,
    heads: Sequence[HeadLike] | HeadLike | None,
    budget: int | str | None,
    progress: bool,
) -> Job:
    """The intact run, with all that these ablations read from it, and a plan that does for each of them.

    One that does not act on z itself takes most: every head's new z is kept besides.
    """
    sites = {ablation: site_of(ablation.intervention) for ablation in ablations}
    costliest = max(ablations, key=lambda ablation: sites[ablation] != "z")
    job = prepare(
        model, prompts, costliest.intervention, metric=kl_divergence, heads=costliest.units(model, heads),
        positions="all", base="clean", budget=budget, progress=progress, sites=tuple(dict.fromkeys(sites.values())),
    )  # fmt: skip
    return replace(job, together=costliest.together(model))


def fill(job: Job, found: Measured, judge: Judge | None, turn: Turn | None, progress: bool) -> Iterator[HeadId]:
    """Go through the heads of a job and write down what each gives; yields once a head that is done."""
    for units, final in finals(job, progress=progress):
        changes = None if judge is None else judge(final)
        for i, (head, _) in enumerate(units):
            at = slice(head.head, head.head + job.together)
            if changes is not None:
                found.kl[head.layer, at] = changes[i]
            if turn is not None:
                states = last_states(final[i])
                found.angle[:, head.layer, at] = np.array(turn(states))[:, None]
                if len(found.resampled):
                    found.resampled[:, head.layer, at] = turn.resampled(states)[:, None]
            yield head


def empty(job: Job, about: dict[str, Any], n_draws: int) -> Measured:
    """Nothing measured yet."""
    shape = job.model.n_layers, job.model.n_heads
    return Measured(
        job.tokens,
        np.full((*shape, len(job.tokens)), np.nan),
        np.full((3, *shape), np.nan),
        np.full((n_draws, *shape), np.nan),
        about,
    )


def _about(job: Job, template: str, r: int | None) -> dict[str, Any]:
    about = {"template": template, "prompts": job.tokens.fingerprint(), "n_prompts": len(job.tokens)}
    if r is not None:
        about |= {"r": r, "angle_interval": "95%, jackknife over prompts on the log scale"}
    return about


def last_states(final: Tensor) -> Float[np.ndarray, "prompt d_model"]:
    """The last-token states as float64."""
    return final[:, -1].double().cpu().numpy()


def check_r(r: int, tokens: Tokens, model: Model) -> None:
    """Make sure that an angle between first r left singular vectors can say something.

    Raises:
        ValueError: if it cannot.
    """
    if not 1 <= r <= model.d_model:
        raise ValueError(f"r is {r}; it must be at least 1 and at most d_model, {model.d_model}")
    different = len({tuple(row) for row in _rows(tokens)})
    if different == 1 and len(tokens) > 1:
        raise ValueError(
            f"all {len(tokens)} prompts are identical, so the angle of Generalized Ships is undefined; "
            "give different ones"
        )
    if different <= r:
        raise ValueError(
            f"r is {r} and the number of different prompts {different}; Generalized Ships needs more prompts "
            "than r: with fewer the singular vectors span the same space in every run"
        )


def _rows(tokens: Tokens) -> list[list[int]]:
    return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]
