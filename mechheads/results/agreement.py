"""Agreement between several scores of the same heads; ``HeadScores.compare`` is of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.heads import HeadId, HeadLike
from mechheads.results.arithmetic import check_aligned
from mechheads.results.dataset import STATISTICS
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Rows
from mechheads.results.stats import cluster_draws, top_shares


def side_by_side(results: Mapping[str, HeadScores], heads: Sequence[HeadLike] | None = None, k: int = 10) -> Rows:
    """The scores of the same heads in several results, each with its interval.

    Args:
        results: results by name, over the same layers and heads, without further dimensions.
        heads: the heads to show, in this order; by default the ``k`` that are furthest from 0 in the first result.

    Returns:
        One row per head, named after it, with the column ``name`` for each result, and ``name_low`` and ``name_high``
        if it has intervals or is a mean over prompts.

    Raises:
        ValueError: if results is empty, they are not over the same heads or have further dimensions, or there is no
            such head.

    >>> import numpy as np
    >>> def scores(row):
    ...     return mh.HeadScores.from_scores(np.array([row]), name="demo", unit="", kind="demo")
    >>> side_by_side({"total": scores([3.0, 2.0]), "direct": scores([0.5, 1.0])})
    head  total  direct
    L0H0      3     0.5
    L0H1      2       1
    """
    _check(results)
    first = next(iter(results.values()))
    shown = first.heads(k, by="absolute") if heads is None else heads
    columns = {}
    for name, scores in results.items():
        rows = [scores[head] for head in shown]
        has_ends = scores.values is not None or bool(scores.dataset["ci_low"].notnull().any())
        ends = [*zip(("", "_low", "_high"), STATISTICS, strict=False)][: 3 if has_ends else 1]
        columns |= {f"{name}{end}": [row[statistic] for row in rows] for end, statistic in ends}
    return Rows(pd.DataFrame(columns, index=pd.Index([str(HeadId.parse(head)) for head in shown])))


def overlap(results: Mapping[str, HeadScores], k: int = 10) -> pd.DataFrame:
    """Compare every two results: how many heads both rank among their first k, and the rank correlation over all.

    Args:
        results: results by name, over the same layers and heads; for example of several ablations, sets of requests,
            scores, or models of one family.
        k: how many heads count as first, among the heads that both measured.

    Returns:
        One row per pair: ``a``, ``b``, ``shared`` (how many of the first k both have), ``by_chance`` (how many they
        would share if drawn at random), ``spearman``, and ``heads``, the shared heads.

    Raises:
        ValueError: if there are fewer than two results, or they are not over the same heads.
    """
    if len(results) < 2:
        raise ValueError(f"results has length {len(results)}; give at least two results to compare")
    rows = []
    for (a, one), (b, other) in combinations(results.items(), 2):
        comparison = one.compare(other, k)
        unknown = {*one.missing, *other.missing}
        every = one.n_layers * one.n_heads
        first, second = ([head for head in part.heads(every) if head not in unknown][:k] for part in (one, other))
        shared = [head for head in first if head in second]
        by_chance = comparison.k**2 / max(comparison.n_heads, 1)
        rows.append((a, b, len(shared), by_chance, comparison.spearman, " ".join(map(str, shared))))
    return pd.DataFrame(rows, columns=["a", "b", "shared", "by_chance", "spearman", "heads"])


def in_top(scores: HeadScores, k: int = 10, *, draws: int = 1000, seed: int = 0) -> Float[np.ndarray, "layer head"]:
    """The share of resamples of the prompts' clusters in which each head is among the first ``k`` [layer, head]."""
    if scores.values is None or scores.extra_dims:
        raise ValueError(f"{scores.name!r} has no values per prompt for each head; give scores that are means")
    drawn = cluster_draws(scores.dataset["cluster"].values.tolist(), draws, seed)
    resampled = np.moveaxis(scores.values.values @ drawn.T / drawn.sum(1), -1, 0)
    return top_shares(resampled, k)


def _check(results: Mapping[str, HeadScores]) -> None:
    """Check that all scores are of the same layers and heads, without extra dimensions."""
    if not isinstance(results, Mapping) or not results:
        raise ValueError(f"results is {results!r}; give scores by name, such as {{'zero': ...}}")
    first = next(iter(results.values()))
    for key, one in results.items():
        if one.extra_dims:
            raise ValueError(
                f"results[{key!r}] has the extra dimensions {one.extra_dims}; choose one label of each with .select()"
            )
        check_aligned(first.dataset, one.dataset)
