"""Do these rankings of heads agree? Every answer to that question, over ``HeadScores``.

| question | answer |
|---|---|
| two scores of the same heads | ``HeadScores.compare`` |
| several rankings, by the heads that come first | ``overlap`` |
| one group of scores against another, with intervals | ``compare_roles`` |
| scores from weights against scores in context | ``score_correlations`` |

MAPS pools all templates and heads into one Pearson correlation and its p. Heads of a layer are not independent, nor
is a head under one template of the same head under another, so that p is far too small: here every template has its
own correlation, and intervals come from leaving out whole layers and, if templates are pooled, whole templates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.results.correlation import pearson, pearson_interval, spearman
from mechheads.results.scores import HeadScores


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
        by_chance = found.k**2 / max(found.n_heads, 1)
        rows.append((a, b, len(shared), by_chance, found.spearman, " ".join(map(str, shared))))
    return pd.DataFrame(rows, columns=["a", "b", "shared", "by_chance", "spearman", "heads"])


def compare_roles(roles: Mapping[str, HeadScores], others: Mapping[str, HeadScores]) -> pd.DataFrame:
    """Rank correlation of each role with each other score, over the heads that both have measured.

    Args:
        roles: of ``mh.head_roles``, or any scores by name.
        others: scores of the same model by name: of ``ablation_effects``, ``mh.relation_scores``, ``mh.ships``, ...

    Returns:
        One row for each role, other score, and label where that has a further dimension (a relation, say): role,
        other, label, spearman, ci_low, ci_high (95%, from leaving out each layer once:
        ``mechheads.results.stats.correlation_interval``) and n, the number of heads. The correlation is NaN if a
        score does not vary or fewer than three heads are left, the interval if there are fewer than three layers.

    Raises:
        ValueError: if there is nothing to compare, or scores are of models of other sizes.

    >>> import numpy as np
    >>> score = lambda values, name: mh.HeadScores.from_scores(values, name=name, unit="", kind="demo")
    >>> rising = np.arange(12.0).reshape(4, 3)
    >>> table = mh.gating.compare_roles({"facilitation": score(rising, "a")}, {"falls": score(-(rising**3), "b")})
    >>> table[["role", "other", "spearman", "n"]].values.tolist()
    [['facilitation', 'falls', -1.0, 12]]
    """
    _check(roles, others)
    rows = []
    for (role, one), (name, other) in product(roles.items(), others.items()):
        left = one.scores.values
        for label, right in _by_label(other):
            both = np.isfinite(left) & np.isfinite(right)
            found = spearman(left[both], right[both], np.nonzero(both)[0])
            rows.append((role, name, label, *found, int(both.sum())))
    return pd.DataFrame(rows, columns=["role", "other", "label", "spearman", "ci_low", "ci_high", "n"])


def score_correlations(static: HeadScores, dynamic: HeadScores) -> pd.DataFrame:
    """Pearson correlation over heads of static and dynamic relation scores.

    Args:
        static: from ``relation_scores``; dynamic: from ``dynamic_scores`` of the same model. Relations that
            both hold are compared.

    Returns:
        One row for each relation, context and template, and with template ``"all"`` for the templates pooled as
        the paper does: relation, context, template, r, ci_low, ci_high (95%, from leaving out each layer and each
        template once: ``mechheads.results.stats.correlation_interval``) and n, the number of points that both have.
        r is NaN if a score does not vary, and the interval is NaN if there are fewer than three layers.

    Raises:
        ValueError: if a result is of another kind, they are of models of other sizes, or share no relation.

    >>> import numpy as np
    >>> phi = np.linspace(0, 1, 12).reshape(4, 3, 1)
    >>> static = mh.HeadScores.from_scores(phi, name="phi", unit="share", kind="relations", extra={"relation": ["r"]})
    >>> dynamic = mh.HeadScores.from_scores(
    ...     phi[..., None, None] / 2, name="dynamic", unit="share", kind="dynamic_relations",
    ...     extra={"relation": ["r"], "template": ["t"], "context": ["with"]})
    >>> mh.labels.score_correlations(static, dynamic)["r"].tolist()
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
                r = pearson(one[measured], other[measured])
                low, high = pearson_interval(one, other, r)
                rows.append((relation, context, template, r, low, high, int(measured.sum())))
    return pd.DataFrame(rows, columns=["relation", "context", "template", "r", "ci_low", "ci_high", "n"])


def shared_relations(static: HeadScores, dynamic: HeadScores) -> list[str]:
    """The relations that static and dynamic scores of one model both hold.

    Raises:
        ValueError: if one is of another kind, they are of models of different sizes, or share no relation.
    """
    wanted = {"static": ("relation",), "dynamic": ("relation", "template", "context")}
    for (name, dims), scores in zip(wanted.items(), (static, dynamic), strict=True):
        if scores.extra_dims != dims:
            raise ValueError(f"{name} ({scores.name!r}) has the dimensions {scores.extra_dims}; it needs {dims}")
    if (static.n_layers, static.n_heads) != (dynamic.n_layers, dynamic.n_heads):
        raise ValueError(
            f"static has {static.n_layers} x {static.n_heads} heads, but dynamic has {dynamic.n_layers} x "
            f"{dynamic.n_heads}; give results of one model"
        )
    theirs = dynamic.dataset["relation"].values.tolist()
    shared = [name for name in static.dataset["relation"].values.tolist() if name in theirs]
    if not shared:
        raise ValueError("static and dynamic share no relation")
    return shared


def _check(roles: Mapping[str, HeadScores], others: Mapping[str, HeadScores]) -> None:
    """Make sure that all scores are of one model's heads.

    Raises:
        ValueError: naming the first that is not.
    """
    for name, group in (("roles", roles), ("others", others)):
        if not isinstance(group, Mapping) or not group:
            raise ValueError(f"{name} must hold scores by name, such as {{'zero': ...}}, got {group!r}")
    first = next(iter(roles.values()))
    for name, group in (("roles", roles), ("others", others)):
        for key, one in group.items():
            if one.extra_dims and name == "roles":
                raise ValueError(f"roles[{key!r}] has the dimensions {one.extra_dims}; select a label of each")
            if (one.n_layers, one.n_heads) != (first.n_layers, first.n_heads):
                raise ValueError(
                    f"{name}[{key!r}] is of {one.n_layers} x {one.n_heads} heads and the roles of {first.n_layers} x "
                    f"{first.n_heads}; compare scores of one model"
                )


def _by_label(scores: HeadScores) -> Iterator[tuple[str, Float[np.ndarray, "layer head"]]]:
    """A score of every head for each label of the further dimensions; without those one, with an empty label."""
    labels = [scores.dataset[dim].values.tolist() for dim in scores.extra_dims]
    flat = scores.scores.values.reshape(scores.n_layers, scores.n_heads, -1)
    for i, label in enumerate(product(*labels)):
        yield ", ".join(map(str, label)), flat[..., i]
