"""How well weights foretell what heads do in context: correlation of static with dynamic scores.

MAPS pools all templates and heads into one Pearson correlation and its p. Heads of a layer are not independent, nor
is a head under one template of the same head under another, so that p is far too small: here every template has its
own correlation, and intervals come from leaving out whole layers, and where templates are pooled whole templates too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.plots.agreement import shared_relations
from mechheads.scores import HeadScores
from mechheads.stats import correlation_interval


def score_correlations(static: HeadScores, dynamic: HeadScores) -> pd.DataFrame:
    """Pearson correlation over heads of static and dynamic relation scores.

    Args:
        static: from ``relation_scores``; dynamic: from ``dynamic_scores`` of the same model. Relations that
            both hold are compared.

    Returns:
        One row for each relation, context and template, and with template ``"all"`` for the templates pooled as
        the paper does: relation, context, template, r, ci_low, ci_high (95%, from leaving out each layer and each
        template once: ``mechheads.stats.correlation_interval``) and n, the number of points that both have. r is NaN
        where a score does not vary, and the interval where there are fewer than three layers.

    Raises:
        ValueError: if a result is of another kind, they are of models of other sizes, or share no relation.

    >>> import numpy as np
    >>> phi = np.linspace(0, 1, 12).reshape(4, 3, 1)
    >>> static = mh.HeadScores.from_scores(phi, name="phi", unit="share", kind="relations", extra={"relation": ["r"]})
    >>> dynamic = mh.HeadScores.from_scores(
    ...     phi[..., None, None] / 2, name="dynamic", unit="share", kind="dynamic_relations",
    ...     extra={"relation": ["r"], "template": ["t"], "context": ["with"]})
    >>> mh.score_correlations(static, dynamic)["r"].tolist()
    [1.0, 1.0]
    """
    shared = shared_relations(static, dynamic)
    templates = dynamic.dataset["template"].values.tolist()
    rows = []
    for relation in shared:
        x = static.scores.sel(relation=relation).values
        for context in dynamic.dataset["context"].values.tolist():
            y = dynamic.scores.sel(relation=relation, context=context).transpose("template", "layer", "head").values
            each = [(template, y[i : i + 1]) for i, template in enumerate(templates)]
            for template, other in [*each, ("all", y)]:
                one = np.broadcast_to(x, other.shape)
                measured = np.isfinite(one) & np.isfinite(other)
                r = _pearson(one[measured], other[measured])
                low, high = _interval(one, other, r)
                rows.append((relation, context, template, r, low, high, int(measured.sum())))
    return pd.DataFrame(rows, columns=["relation", "context", "template", "r", "ci_low", "ci_high", "n"])


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return float("nan")
    return float(np.clip(np.corrcoef(x, y)[0, 1], -1, 1).round(12))


def _interval(
    x: Float[np.ndarray, "template layer head"], y: Float[np.ndarray, "template layer head"], r: float
) -> tuple[float, float]:
    """From the correlations without each layer and without each template, which their moments alone give."""
    measured = np.isfinite(x) & np.isfinite(y)
    x, y = np.where(measured, x, 0.0), np.where(measured, y, 0.0)
    moments = np.stack([part.sum(2) for part in (measured, x, y, x * x, y * y, x * y)])
    moments = moments[:, :, measured.any((0, 2))]
    left_out = []
    for axis in (2, 1):
        count, sx, sy, xx, yy, xy = moments.sum((1, 2))[:, None] - moments.sum(3 - axis)
        with np.errstate(divide="ignore", invalid="ignore"):
            left_out.append((count * xy - sx * sy) / np.sqrt((count * xx - sx**2) * (count * yy - sy**2)))
    return correlation_interval(r, *left_out)
