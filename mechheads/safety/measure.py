"""One pass over the heads: each is ablated once, and Ships and Generalized Ships both read that run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadLike
from mechheads.interventions import Intervention, Scale, UniformAttention
from mechheads.jobs import Job, prepare
from mechheads.judge import Judge
from mechheads.metrics import kl_divergence
from mechheads.model import Model
from mechheads.prompts import Prompts
from mechheads.safety.angles import Turn
from mechheads.safety.requests import Requests, Template, request_prompts
from mechheads.sweeps import finals
from mechheads.tokens import Tokens

Ablation = Literal["undifferentiated", "scaling"]

_ABLATIONS: dict[str, type[UniformAttention] | type[Scale]] = {
    "undifferentiated": UniformAttention,
    "scaling": Scale,
}


@dataclass(frozen=True)
class Measured:
    """What one pass over the heads found; what was not asked for stays NaN."""

    tokens: Tokens
    kl: Float[np.ndarray, "layer head prompt"]
    angle: Float[np.ndarray, "3 layer head"]
    provenance: dict[str, Any]


def measure(
    model: Model,
    requests: Requests,
    *,
    ablation: str,
    epsilon: float,
    template: Template,
    heads: Sequence[HeadLike] | HeadLike | None,
    budget: int | str | None,
    progress: bool,
    with_kl: bool = False,
    r: int | None = None,
) -> Measured:
    """Ablate each head once; take from that run the KL, if asked for, and with ``r`` the angle."""
    intervention = _intervention(ablation, epsilon)
    prompts = request_prompts(model, requests, template)
    if r is not None:
        _check_r(r, prompts.tokens(model), model)
    job = prepare(
        model, prompts, intervention, metric=kl_divergence, heads=heads, positions="all", base="clean",
        budget=budget, progress=progress,
    )  # fmt: skip
    judge = Judge(kl_divergence, job.base) if with_kl else None
    turn = None if r is None else Turn(_last(job.base.final_at(job.at)), r, job.tokens.cluster)
    kl = np.full((model.n_layers, model.n_heads, len(job.tokens)), np.nan)
    angle = np.full((3, model.n_layers, model.n_heads), np.nan)
    done = 0
    try:
        for units, final in finals(job, progress=progress):
            for i, (head, _) in enumerate(units):
                if judge is not None:
                    kl[head.layer, head.head] = judge(final[i : i + 1])[0]
                if turn is not None:
                    angle[:, head.layer, head.head] = turn(_last(final[i]))
                done += 1
    except KeyboardInterrupt:
        warnings.warn(f"interrupted after {done} of {len(job.heads)} heads; the rest are NaN", stacklevel=3)
    used = "prompts as given" if isinstance(requests, Prompts) else template
    return Measured(job.tokens, kl, angle, _provenance(job, ablation, epsilon, used, r))


def _provenance(job: Job, ablation: str, epsilon: float, template: str, r: int | None) -> dict[str, Any]:
    about = {
        "ablation": ablation,
        "epsilon": epsilon,
        "ablated": "one query head at a time",
        "template": template,
        "prompts": job.tokens.fingerprint(),
        "n_prompts": len(job.tokens),
        "intervention": repr(job.intervention),
    }
    if r is not None:
        about |= {"r": r, "angle_interval": "95%, jackknife over prompts on the log scale"}
    return job.model.provenance() | about


def _last(final: Tensor) -> Float[np.ndarray, "prompt d_model"]:
    """The last-token states as float64."""
    return final[:, -1].double().cpu().numpy()


def _intervention(ablation: str, epsilon: float) -> Intervention:
    if ablation not in _ABLATIONS:
        raise ValueError(f"ablation is {ablation!r}; choose one of {', '.join(map(repr, _ABLATIONS))}")
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon is {epsilon}; it must be a finite number of 0 or more (the paper's: 1e-4)")
    return _ABLATIONS[ablation](epsilon)


def _check_r(r: int, tokens: Tokens, model: Model) -> None:
    """Make sure that an angle between first r left singular vectors can say something."""
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
