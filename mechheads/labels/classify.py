"""From relation scores to labels: which categories each head has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from mechheads.heads import HeadLike, check_head
from mechheads.labels.relations import CATEGORIES, RelationLike, load_relations
from mechheads.labels.static import relation_scores
from mechheads.netcdf import text_array
from mechheads.scores import HeadScores

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.model import Model

_DIMS = ("layer", "head", "category")


class HeadLabels(HeadScores):
    """The categories of every head, each with the relation that speaks most for it.

    ``score`` over (layer, head, category) is the best relation score among the category's relations, and
    ``ci_low`` and ``ci_high`` are that relation's interval, which does not allow for its having been the best
    of several. Further variables over the same dimensions: ``member`` (has the head this category?),
    ``best_relation`` and ``suppresses`` (does it suppress that relation rather than implement it?).
    """

    KIND = "labels"

    @property
    def categories(self) -> tuple[str, ...]:
        """All categories that were looked for."""
        return tuple(self.dataset["category"].values.tolist())

    def of(self, head: HeadLike) -> tuple[str, ...]:
        """The categories of one head; empty where it has none.

        Raises:
            ValueError: if there is no such head.

        >>> pairs = [("France", "Paris"), ("Spain", "Madrid"), ("Japan", "Tokyo")]
        >>> labels = mh.label_heads(model, mh.Relation("capitals", "Knowledge", pairs), min_pairs=3)
        >>> labels.of("L23H4")
        ('Knowledge',)
        """
        found = check_head(head, self.n_layers, self.n_heads)
        member = self.dataset["member"].values[found.layer, found.head]
        return tuple(name for name, has in zip(self.categories, member, strict=True) if has)

    def counts(self) -> dict[str, int]:
        """How many heads have each category, none, and several.

        A head with two categories counts for both of them and once more under "2 categories".
        """
        member = self.dataset["member"].values.astype(bool)
        measured = ~np.isnan(self.scores.values).all(-1)
        several = member.sum(-1)[measured]
        counts = {name: int(member[..., i].sum()) for i, name in enumerate(self.categories)}
        counts["Unclassified"] = int((several == 0).sum())
        for n in range(2, len(self.categories) + 1):
            counts[f"{n} categories"] = int((several == n).sum())
        return counts

    def plot(self, **options: Any) -> go.Figure:
        """Category map; options go to ``mechheads.plots.category_map``."""
        from mechheads.plots.categories import category_map

        return category_map(self, **options)


def label_heads(
    model: Model | HeadScores,
    relations: RelationLike | Iterable[RelationLike] | None = None,
    rule: Literal["maps"] = "maps",
    tau: float = 0.15,
    *,
    suppression: bool = False,
    **options: Any,
) -> HeadLabels:
    """Label every head with the categories whose relations it implements.

    The rule of MAPS (Elhelo & Geva 2024, section 4): a head has a category if, for at least one of its
    relations, the relation score phi is at least ``tau``.

    Args:
        model: a model, or the result of ``relation_scores`` where that is at hand.
        relations: as ``relation_scores`` takes them; ``None``: those of the package. Each needs a category.
        rule: "maps", the rule above.
        tau: the least phi, between 0 and 1.
        suppression: whether a head that suppresses a relation at least as strongly has its category too, as
            the paper's figure counts it.
        options: go to ``relation_scores``: ``k``, ``k_copying``, ``first_mlp``, ``min_pairs``, ``progress``.

    Raises:
        ValueError: for an unknown rule, a ``tau`` outside 0..1, a relation without a category, or options
            that come too late because scores are given.

    >>> labels = mh.label_heads(mh.relation_scores(model, "country_to_capital"))
    >>> labels.categories, labels.of("L23H4"), labels.of("L0H0")
    (('Knowledge',), ('Knowledge',), ())
    """
    if rule != "maps":
        raise ValueError(f'rule is {rule!r}; there is "maps"')
    if not 0 < tau <= 1:
        raise ValueError(f"tau is {tau}; it is a share of pairs, above 0 and at most 1")
    if not isinstance(model, HeadScores):
        loaded = load_relations(relations)
        _check_categories({relation.name: relation.category for relation in loaded})
        scores = relation_scores(model, None if relations is None else loaded, **options)
    elif relations is not None or options:
        late = [*(["relations"] if relations is not None else []), *options]
        raise ValueError(f"{', '.join(late)}: scores are given, so leave it out, or give the model itself")
    else:
        scores = model
    category_of = _categories(scores)
    found = list(dict.fromkeys(category_of))
    categories = [name for name in CATEGORIES if name in found]
    categories += [name for name in found if name not in categories]
    best = [_best(scores, [c == name for c in category_of], suppression) for name in categories]
    score, low, high, relation, suppresses = (np.stack(part, axis=-1) for part in zip(*best, strict=True))
    return HeadLabels.from_scores(
        score,
        ci_low=low,
        ci_high=high,
        name="head categories",
        unit=scores.unit,
        kind="labels",
        extra={"category": categories},
        provenance={**scores.provenance, "rule": rule, "tau": tau, "suppression": suppression},
        variables={
            "member": (_DIMS, score >= tau),
            "best_relation": (_DIMS, text_array(relation.ravel().tolist(), relation.shape)),
            "suppresses": (_DIMS, suppresses),
        },
    )


def _categories(scores: HeadScores) -> list[str]:
    if "relation_category" not in scores.dataset:
        raise ValueError(
            f"{scores.name!r} says nothing about relations and their categories; give a model, or what "
            "relation_scores returned"
        )
    names = scores.dataset["relation"].values.tolist()
    categories = scores.dataset["relation_category"].values.tolist()
    _check_categories(dict(zip(names, categories, strict=True)))
    return categories


def _check_categories(category_of: Mapping[str, str | None]) -> None:
    if without := [name for name, category in category_of.items() if not category]:
        raise ValueError(
            f"relation {without[0]!r} has no known category, so it cannot label heads; load it with one: "
            f"Relation.load(path, category={CATEGORIES[0]!r}); the usual ones are {', '.join(CATEGORIES)}"
        )


def _best(
    scores: HeadScores, chosen: list[bool], suppression: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Best score over some relations, its interval, the relation, is it suppressed: [layer, head] each."""
    part: xr.Dataset = scores.dataset.isel(relation=np.flatnonzero(chosen))
    phi, low, high = (part[name].values for name in ("score", "ci_low", "ci_high"))
    names = part["relation"].values
    suppresses = np.zeros(phi.shape, dtype=bool)
    if suppression:
        against = part["suppression"].values
        suppresses = against > phi
        phi = np.where(suppresses, against, phi)
        low, high = np.where(suppresses, np.nan, low), np.where(suppresses, np.nan, high)
    winner = np.where(np.isnan(phi), -np.inf, phi).argmax(-1)[..., None]
    best, low, high, suppresses = (
        np.take_along_axis(array, winner, axis=-1)[..., 0] for array in (phi, low, high, suppresses)
    )
    return best, low, high, np.where(np.isnan(best), "", names[winner[..., 0]]), suppresses
