"""Scores of heads beside the same scores under a control, and a test of the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.results.scores import HeadScores
from mechheads.results.stats import clustered_interval, mean_over_prompts, q_values, sign_flip_p


def against_control(
    values: Float[np.ndarray, "layer head prompt"],
    control: Float[np.ndarray, "layer head prompt"],
    cluster: Sequence[object],
    *,
    kind: str,
    about: Mapping[str, Any],
    provenance: Mapping[str, Any],
    variables: Mapping[str, Any] | None = None,
) -> HeadScores:
    """Means over prompts with their intervals, and the ``excess`` over the control.

    Args:
        values, control: what was measured, and the same under the control.
        about: ``name``, and if the kind does not say it ``unit``.
        provenance: with the ``seed`` of the sign flips.

    Returns:
        Scores with ``control``, ``excess``, ``excess_low`` and ``excess_high`` (layer, head). ``p_value`` and
        ``q_value`` belong to the excess.
    """
    excess, seed = values - control, int(provenance["seed"])
    low, high = clustered_interval(excess, cluster)
    p, dims = sign_flip_p(excess, cluster, seed=seed), ("layer", "head")
    found = HeadScores.from_values(
        values,
        kind=kind,
        cluster=cluster,
        null=None,
        seed=seed,
        provenance=provenance,
        variables={
            "control": (dims, mean_over_prompts(control)),
            "excess": (dims, mean_over_prompts(excess)),
            "excess_low": (dims, low),
            "excess_high": (dims, high),
            **(variables or {}),
        },
        **about,
    )
    return HeadScores(found.dataset.assign(p_value=(dims, p), q_value=(dims, q_values(p))))
