"""What a job measured, as ``HeadScores``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job
from mechheads.interventions.base import Intervention
from mechheads.metrics.base import MetricInfo, name_of
from mechheads.results.dataset import Label
from mechheads.results.scores import HeadScores


@dataclass(frozen=True)
class About:
    """How a result names itself.

    Attributes:
        name: of the result.
        kind: of analysis; tells ``HeadScores.citation`` which papers to name.
        share: what a normalised score is a share of.
        extra: further dimensions, each with its labels.
        more: what else the provenance remembers.
    """

    name: str
    kind: str
    share: str = "share restored"
    extra: Mapping[str, Sequence[Label]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def report(
    job: Job, values: Float[np.ndarray, "layer head *extra prompt"], evaluator: Evaluator, about: About
) -> HeadScores:
    """Means over prompts, with the metric's unit and null, and what it takes to repeat them."""
    spec, metric = job.spec, MetricInfo.of(job.spec.metric)
    return HeadScores.from_values(
        values,
        name=about.name,
        unit=about.share if spec.normalize else metric.unit,
        kind=about.kind,
        cluster=job.tokens.cluster,
        extra=about.extra,
        null=metric.null,
        seed=spec.seed,
        provenance=job.model.provenance()
        | {"metric": metric.name, "prompts": job.fingerprint(), "n_prompts": len(job.tokens), "seed": spec.seed}
        | dict(about.more),
        variables={"base_metric": (("prompt",), evaluator.base_value.cpu().numpy())},
    )


def describe_intervention(intervention: Intervention) -> str:
    """An intervention as results name it: a dataclass with its fields, a function by its name."""
    return name_of(intervention) if hasattr(intervention, "__name__") else repr(intervention)


def describe_heads(job: Job) -> str | list[str]:
    """The heads that were asked for, as results name them."""
    return "all" if job.spec.heads is None else [str(head) for head in job.heads]


def describe_positions(job: Job) -> Any:
    """The positions that were asked for, as results name them."""
    positions = job.spec.positions
    return positions if isinstance(positions, str) else list(positions)
