"""Scores of heads beside the same scores under a control, and a test of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.limits import current
from mechheads.results.scores import HeadScores
from mechheads.results.stats import clustered_interval, family_p, mean_over_prompts, q_values, rounding_of, sign_flip_p


def against_control(
    values: Float[np.ndarray, "layer head *extra prompt"],
    control: Float[np.ndarray, "layer head *extra prompt"],
    *,
    cluster: Sequence[object],
    called: str = "control",
    **about: Any,
) -> HeadScores:
    """Scores of values, with the ``excess`` of the values over those of a control.

    Args:
        control: what was measured under the control.
        cluster: a label per prompt.
        called: the variable that holds the mean of the control.
        about: what else ``HeadScores.from_values`` takes.

    Returns:
        Scores with the control, ``excess``, ``excess_low`` and ``excess_high``. ``p_value``, ``q_value`` and
        ``p_family`` belong to the excess.
    """
    seed = current().seed
    scores = HeadScores.from_values(values, cluster=cluster, seed=seed, null=None, **about)
    excess, dims = values - control, scores.scores.dims
    low, high = clustered_interval(excess, cluster)
    test: dict[str, Any] = {"seed": seed, "rounding": rounding_of(values, control)}
    p = sign_flip_p(excess, cluster, **test)
    found = {
        called: mean_over_prompts(control),
        "excess": mean_over_prompts(excess),
        "excess_low": low,
        "excess_high": high,
        "p_value": p,
        "q_value": q_values(p),
        "p_family": family_p(excess, cluster, **test),
    }
    return HeadScores(scores.dataset.assign({name: (dims, values) for name, values in found.items()}))
