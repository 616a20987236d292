"""How far rankings of heads agree: between ablations, data sets, or models of one family."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pandas as pd

from mechheads.scores import HeadScores


def overlap(results: Mapping[str, HeadScores], k: int = 10) -> pd.DataFrame:
    """Every two results side by side: heads that both have among their first k, and rank correlation over all.

    Args:
        results: by name, over the same layers and heads; of several ablations, sets of requests, scores, or models
            of one family.
        k: how many count as the first, of the heads that both measured.

    Returns:
        One row a pair: ``a``, ``b``, ``shared`` (how many of the first k), ``by_chance`` (how many of k would be,
        drawn blindly), ``spearman``, and ``heads``, those shared.

    Raises:
        ValueError: for fewer than two results, or results over other heads.

    >>> import numpy as np
    >>> def scores(row):
    ...     return mh.HeadScores.from_scores(np.array([row]), name="demo", unit="", kind="demo")
    >>> both = {"one": scores([3.0, 2.0, 1.0, 0.0]), "other": scores([2.0, 1.0, 3.0, 0.0])}
    >>> overlap(both, k=2)[["shared", "by_chance", "heads"]].values.tolist()
    [[1, 1.0, 'L0H0']]
    """
    if len(results) < 2:
        raise ValueError(f"results holds {len(results)} of them; give at least two to compare")
    rows = []
    for (a, one), (b, other) in combinations(results.items(), 2):
        found = one.compare(other, k)
        unknown = {*one.missing, *other.missing}
        every = one.n_layers * one.n_heads
        first, second = ([head for head in part.heads(every) if head not in unknown][:k] for part in (one, other))
        shared = [head for head in first if head in second]
        rows.append({
            "a": a, "b": b, "shared": len(shared), "by_chance": found.k**2 / max(found.n_heads, 1),
            "spearman": found.spearman, "heads": " ".join(map(str, shared)),
        })  # fmt: skip
    return pd.DataFrame(rows)
