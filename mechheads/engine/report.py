"""The measured values of a job as ``HeadScores``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.held_heads import Held
from mechheads.engine.job import Job
from mechheads.interventions.base import Intervention
from mechheads.messages.warn import warn
from mechheads.metrics.base import MetricInfo, name_of
from mechheads.results.dataset import Label
from mechheads.results.kinds import kind_of
from mechheads.results.naming import titled
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import rounding_of


@dataclass(frozen=True)
class About:
    """The name, kind, dimensions and further provenance of a result.

    Attributes:
        name: the name of the result.
        kind: the kind of analysis; ``HeadScores.citation`` uses it to choose the papers.
        share: the unit of normalised scores.
        extra: further dimensions, each with its labels.
        more: further entries of the provenance.
        exact: whether the values are changes of the metric itself, within its bounds, and not estimates of them.
    """

    name: str
    kind: str
    share: str = "share restored"
    extra: Mapping[str, Sequence[Label]] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


def report(job: Job, values: Float[np.ndarray, "layer head *extra prompt"], about: About) -> HeadScores:
    """Means over prompts with intervals, in the metric's unit, and the provenance to repeat them.

    They have p values unless the kind has no test, or the metric has no null.
    """
    spec, metric = job.spec, MetricInfo.of(job.spec.metric)
    base, given = job.evaluator.base_value.cpu().numpy(), describe_given(spec.held)
    if metric.bounds == (None, None) and not metric.share and _only_0_and_1(base, values):
        warn(
            f"metric {metric.name} is 0 or 1 for every prompt, but does not say that it is a share, so intervals where "
            "all prompts agree have no width; declare it with @mh.metric(share=True)"
        )
    return HeadScores.from_values(
        values,
        name=titled(about.name, given),
        unit=about.share if spec.normalize else metric.unit,
        kind=about.kind,
        cluster=job.tokens.cluster,
        extra=about.extra,
        null=None if kind_of(about.kind).null is None else metric.null,
        seed=spec.seed,
        bounds=metric.bounds_of_changes(job.evaluator.distance() if spec.normalize else 1.0) if about.exact else None,
        rounding=None if spec.normalize else rounding_of(values, base),
        provenance=make_provenance(
            job.model,
            {"metric": metric.name, "prompts": job, "n_prompts": len(job.tokens), "seed": spec.seed},
            about.more,
            given,
        ),
        variables={"base_metric": (("prompt",), base)},
    )


def _only_0_and_1(base: Float[np.ndarray, " prompt"], changes: Float[np.ndarray, "layer head *extra prompt"]) -> bool:
    """Whether a metric was 0 or 1 in every run."""
    return bool(np.isin(base, (0, 1)).all() and np.isin(changes[np.isfinite(changes)], (-1, 0, 1)).all())


def describe_intervention(intervention: Intervention) -> str:
    """The name of an intervention in results: a dataclass with its fields, or a function's name."""
    return name_of(intervention) if hasattr(intervention, "__name__") else repr(intervention)


def describe_given(held: Held) -> dict[str, dict[str, str]]:
    """The heads that are ablated all the time, and how, as the provenance stores them; nothing if there are none."""
    return {"given": {str(head): describe_intervention(rule) for head, rule in held}} if held else {}


def describe_heads(job: Job) -> str | list[str]:
    """The requested heads, as the provenance stores them."""
    return "all" if job.spec.heads is None else [str(head) for head in job.heads]


def describe_positions(job: Job) -> Any:
    """The requested positions, as the provenance stores them."""
    positions = job.spec.positions
    return positions if isinstance(positions, str) else list(positions)
