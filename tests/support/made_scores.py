"""Static and dynamic relation scores with chosen values."""

from __future__ import annotations

import numpy as np

from mechheads.results.scores import HeadScores

_LABELS = {"relation": ["r"], "template": ["t0", "t1"], "context": ["with"]}


def made_scores(values: np.ndarray) -> HeadScores:
    """Static scores of values [layer, head, relation], dynamic ones of [layer, head, relation, template, context]."""
    extra = {dim: labels[:n] for (dim, labels), n in zip(_LABELS.items(), values.shape[2:], strict=False)}
    return HeadScores.from_scores(values, name="made", unit="share", kind="demo", extra=extra)


def static_and_dynamic(rng: np.random.Generator) -> tuple[HeadScores, HeadScores]:
    """Scores of 20 layers of 4 heads that agree to some degree."""
    x = rng.random((20, 4, 1))
    return made_scores(x), made_scores(0.5 * x[..., None, None] + 0.2 * rng.random((20, 4, 1, 2, 1)))
