"""Scores of heads beside the same scores under a control, and a test of the difference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechheads.results.scores import HeadScores
from mechheads.results.stats import clustered_interval, mean_over_prompts, q_values, sign_flip_p


def against_control(
    scores: HeadScores,
    control: Float[np.ndarray, "layer head *extra prompt"],
    cluster: Sequence[object],
    *,
    seed: int,
    called: str = "control",
) -> HeadScores:
    """The scores with the ``excess`` of their values over those of a control.

    Args:
        scores: means over prompts, made with ``null=None``.
        control: what was measured under the control.
        cluster: a label per prompt.
        seed: for the sign flips of the p values.
        called: the variable that holds the mean of the control.

    Returns:
        Scores with the control, ``excess``, ``excess_low`` and ``excess_high``. ``p_value`` and ``q_value`` belong to
        the excess.
    """
    excess, dims = scores.dataset["values"].values - control, scores.scores.dims
    low, high = clustered_interval(excess, cluster)
    p = sign_flip_p(excess, cluster, seed=seed)
    found = {
        called: mean_over_prompts(control),
        "excess": mean_over_prompts(excess),
        "excess_low": low,
        "excess_high": high,
        "p_value": p,
        "q_value": q_values(p),
    }
    return HeadScores(scores.dataset.assign({name: (dims, values) for name, values in found.items()}))
