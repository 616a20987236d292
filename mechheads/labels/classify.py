"""From relation scores to labels: the categories of each head, by our rule or by the paper's, and their evidence.

By our rule, a head has a category if, for one of its relations, more pairs are hit than shuffled targets explain:
q <= ``fdr`` over all heads and relations (Benjamini & Hochberg 1995), and phi above the mean of the shuffles by at
least ``floor``. Evidence that is as significant but smaller, or from too few pairs, is listed and gives no category.
The paper's rule (MAPS, Elhelo & Geva 2025, section 4) requires only phi >= ``tau``. Causal evidence from patching is
listed with a label and never changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool

from mechheads.heads import HeadLike, Heads, check_head, check_heads
from mechheads.labels.causal import CausalEvidence
from mechheads.labels.relations import CATEGORIES, LEAST_PAIRS, Relations
from mechheads.labels.static import LEAST_EFFECT, relation_scores
from mechheads.messages.arguments import Share, Within
from mechheads.messages.notices import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.dataset import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Rows, chosen, pairs_left_out

Rule = Literal["null", "maps"]
_DIMS = ("layer", "head", "category")
_PER_RELATION = ("layer", "head", "relation")
_CAUSAL_FLOOR = 0.05
"""A head acts on a relation in context if its effect is at least this share of the difference between the runs."""

_OF_SCORES = {
    "phi": "score",
    "phi_low": "ci_low",
    "phi_high": "ci_high",
    "relation_reading": "reading",
    "contrast": "contrast",
    "null_phi": "null_phi",
    "p": "p_value",
    "q": "q_value",
    "suppression": "suppression",
}
"""Columns of ``HeadLabels.table``, each a variable over (layer, head, relation), and their names in the scores."""
_EFFECTS = [f"{kind}{end}" for kind in ("total", "direct") for end in ("", "_low", "_high")]
_FIRST = ("head", "label", "relation", "phi", "null_phi", "phi_low", "q", "reading")
"""The columns of ``HeadLabels.table`` that are shown first."""


class HeadLabels(HeadScores):
    """The categories of every head, each with the relation that is the strongest evidence for it.

    ``score`` over (layer, head, category) is the relation score phi of the category's best relation, and
    ``ci_low``, ``ci_high``, ``p_value`` and ``q_value`` belong to that relation; the interval does not account for
    its selection as the best of several. Further variables over the same dimensions: ``member`` (whether the head has
    this category), ``below_floor`` (whether there is evidence for it that is too small), ``best_relation``,
    ``reading`` (how the head reads tokens for that relation) and ``verdict``, which compares the weights with the
    head's effect in context: ``"confirmed"`` if both agree on the same relation, ``"weights only"`` or ``"in context
    only"``, and empty if there is no evidence from either, or if the relations with evidence from weights were not
    patched. ``table`` has all measures, relation by relation; ``top`` and ``heads`` list members only.
    """

    KIND = "labels"

    @property
    def categories(self) -> tuple[str, ...]:
        """All categories that were tested."""
        return tuple(self.dataset["category"].values.tolist())

    def of(self, head: HeadLike) -> tuple[str, ...]:
        """The categories of one head; empty if it has none.

        Raises:
            ValueError: if there is no such head.
        >>> labels = mh.label_heads(mh.relation_scores(model, "country_to_capital"))
        >>> labels.of("L23H4")
        ('Knowledge',)
        """
        at = check_head(head, self.n_layers, self.n_heads)
        member = self.dataset["member"].values[at.layer, at.head]
        return tuple(name for name, has in zip(self.categories, member, strict=True) if has)

    def counts(self, *, once: bool = False) -> dict[str, int]:
        """How many heads have each category, none, and several; evidence below the floor does not count.

        A head with two categories counts for both of them and also under "2 categories".

        Args:
            once: count such a head under "2 categories" alone, as the map of categories colours it; the numbers then
                sum to the number of heads with scores.
        """
        member = self.dataset["member"].values.astype(bool)
        measured = ~np.isnan(self.scores.values).all(-1)
        several = np.where(measured, member.sum(-1), -1)
        counted = member & (several == 1)[..., None] if once else member
        counts = {name: int(counted[..., i].sum()) for i, name in enumerate(self.categories)}
        counts["Unclassified"] = int((several == 0).sum())
        for n in range(2, len(self.categories) + 1):
            counts[f"{n} categories"] = int((several == n).sum())
        return counts

    def table(self, head: HeadLike | None = None, columns: Sequence[str] | None = None) -> Rows:
        """All evidence, one row for each head and relation; labelled heads come first, by phi.

        The other heads follow in order of layer and head. Within a head, the relations that give its label come first,
        then the others, both by phi.

        Columns: head, relation, category, and the measures of ``relation_scores``; with causal evidence, the total and
        the direct effect with their intervals and the verdict on the head for that relation. Then whether the relation
        is evidence for the label (``is_evidence``), is as significant but below the floor (``is_below_floor``), and is
        the best of its category (``is_best``); the head's label, or "not reached" after an interrupt; and the verdict
        for the category.

        Args:
            head: only the rows of this head.
            columns: the columns to return, in this order; by default all, of which at most eight are shown.
        """
        wanted = None if head is None else check_head(head, self.n_layers, self.n_heads)
        data = self.dataset
        measured = [name for name in (*_OF_SCORES, *_EFFECTS, "relation_verdict") if name in data]
        relations = data["relation"].values.tolist()
        category_of = data["category_of"].values.tolist()
        verdicts, best = data["verdict"].values, data["best_relation"].values
        index = {name: i for i, name in enumerate(self.categories)}
        cells = {name: data[name].values.tolist() for name in [*measured, "is_evidence", "is_below_floor"]}
        rows, missing = [], set(self.missing)
        evidence, phi = (data[name].values for name in ("is_evidence", "phi"))
        first = np.where(evidence, phi, 0.0).max(-1)
        scored = self.scores.notnull().any("category").values
        every = check_heads(None, self.n_layers, self.n_heads) if wanted is None else [wanted]
        every = [head for head in every if head == wanted or head in missing or scored[head.layer, head.head]]
        for one in sorted(every, key=lambda head: -first[head.layer, head.head]):
            label = "; ".join(self.of(one)) or ("not reached" if one in missing else "Unclassified")
            at = one.layer, one.head
            order = np.lexsort((-phi[at], ~evidence[at].astype(bool)))
            for i in order.tolist():
                evidence_of = {name: values[one.layer][one.head][i] for name, values in cells.items()}
                at = one.layer, one.head, index[category_of[i]]
                named = {"head": str(one), "relation": relations[i], "category": category_of[i]}
                metadata = {"is_best": bool(best[at] == relations[i]), "label": label, "verdict": str(verdicts[at])}
                rows.append(named | evidence_of | metadata)
        table = pd.DataFrame(rows).rename(columns={"relation_reading": "reading"})
        table.attrs["first"] = _FIRST
        return chosen(table, columns)

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        table = self.table()
        counts = ", ".join(f"{name} {n}" for name, n in self.counts(once=True).items())
        labelled = table.query("is_evidence")
        first = labelled.head(10) if len(labelled) else table.nlargest(10, "phi")
        notes = [counts, *pairs_left_out(self.provenance.get("ledger", {})), *self.provenance.get("limits", ())]
        return first, notes if len(labelled) else [*notes, "No head is labelled. Those with the largest phi:"]


@analysis
def label_heads(
    model: Model | HeadScores,
    relations: Relations | None = None,
    rule: Rule = "null",
    *,
    fdr: Annotated[float, Within(above=0, most=1)] = 0.05,
    floor: Share = 0.1,
    tau: Annotated[float, Within(above=0, most=1)] = 0.15,
    causal: CausalEvidence | None = None,
    heads: Heads | None = None,
) -> HeadLabels:
    """The categories of every head, from the relations that its weights implement.

    Args:
        model: a model, or the result of ``relation_scores``, which has more options.
        relations: as in ``relation_scores``. The label of a relation without a category is its name. A relation of
            fewer than 30 pairs gives no label, unless ``min_pairs`` of its scores allows fewer. A warning and
            ``provenance["limits"]`` name both kinds.
        rule: ``"null"``: above shuffled targets by at least ``floor``, at a false discovery rate of ``fdr`` over heads
            and relations; ``"maps"``: the paper's rule, phi >= ``tau``.
        fdr, floor: for our rule. The floor is a share of pairs: evidence that exceeds chance by less gives no category;
            ``labels.table()`` lists it with ``is_below_floor``.
        tau: for the paper's rule, above 0 and at most 1.
        causal: the result of ``relation_evidence``; adds effects and verdicts, and changes no label. A head acts on a
            relation in context if its total or direct effect is at least 5% of the difference between the runs, with
            q <= ``fdr``.
        heads: the heads to score, as in ``relation_scores``; the others have no label.

    Returns:
        The categories of each head, by ``.of(head)``, and a row for each head and relation, by ``.table()``.

    >>> labels = mh.label_heads(mh.relation_scores(model, "country_to_capital"))
    >>> labels.categories, labels.of("L23H4"), labels.of("L0H0")
    (('Knowledge',), ('Knowledge',), ())
    """
    if isinstance(model, HeadScores):
        if late := [name for name, value in (("relations", relations), ("heads", heads)) if value is not None]:
            raise ValueError(f"{', '.join(late)}: cannot be used with scores; leave it out, or give the model itself")
        scores = model
    else:
        scores = relation_scores(model, relations, min_effect=min(floor, LEAST_EFFECT), heads=heads)
    if "relation_category" not in scores.dataset or scores.extra_dims != ("relation",):
        raise ValueError(f"{scores.name!r} holds no relations; give a model, or the result of relation_scores")
    names, own = (scores.dataset[name].values.tolist() for name in ("relation", "relation_category"))
    category_of = [category or name for name, category in zip(names, own, strict=True)]
    short, limits = _limits(scores)
    tested = scores.provenance.get("min_effect", 0.0)
    if rule == "null" and tested > floor:
        raise ValueError(
            f"floor is {floor}, but scores below {tested} were not tested; give relation_scores min_effect={floor}, "
            "or a larger floor"
        )
    enough, below = _evidence(scores, rule, fdr, floor, tau)
    enough, below = enough & ~short, below | (enough & short)
    named = list(dict.fromkeys(category_of))
    categories = [name for name in CATEGORIES if name in named]
    categories += [name for name in named if name not in categories]
    of_category = [np.array([category == name for category in category_of]) for name in categories]
    acts = None if causal is None else _acts_in_context(scores, causal, fdr)
    best = [_best(scores, where, enough, below) for where in of_category]
    columns = {name: np.stack([part[name] for part in best], axis=-1) for name in best[0]}
    verdicts = [_verdict(enough[..., at], None if acts is None else acts[..., at]) for at in of_category]
    verdict = np.stack(verdicts, axis=-1)
    names, reading = columns.pop("best_relation"), columns.pop("reading")
    score, low, high, p_value, q_value = (columns.pop(name) for name in ("score", "low", "high", "p", "q"))
    thresholds = {"tau": tau} if rule == "maps" else {"fdr": fdr, "floor": floor}
    evidence = {} if causal is None else {"causal": causal.provenance}
    columns |= {"best_relation": text_array(names), "reading": text_array(reading), "verdict": text_array(verdict)}
    labels = HeadLabels.from_scores(
        score,
        interval=(low, high),
        p_value=p_value,
        name="head categories",
        unit=scores.unit,
        kind="labels",
        extra={"category": categories},
        provenance=make_provenance(scores.provenance, thresholds, evidence, rule=rule, limits=limits),
    ).assign(q_value=(_DIMS, q_value), **{name: (_DIMS, array) for name, array in columns.items()})
    for note in limits:
        warn(note)
    data = labels.dataset.assign_coords(relation=scores.dataset["relation"])
    return HeadLabels(data.assign(_table_columns(scores, causal, enough, below, acts, category_of)))


def _limits(scores: HeadScores) -> tuple[np.ndarray, list[str]]:
    """A mask of the relations with too few pairs for a label, and notes on these and on relations without category."""
    names, categories = (scores.dataset[name].values.tolist() for name in ("relation", "relation_category"))
    least = scores.provenance.get("min_pairs") or LEAST_PAIRS
    n_pairs = scores.dataset["n_pairs"].values
    few = {name: int(n) for name, n in zip(names, n_pairs, strict=True) if n < least}
    bare = [name for name, category in zip(names, categories, strict=True) if not category and name not in few]
    limits = [f"too few pairs for a label (min_pairs={least}): {name} {n}" for name, n in few.items()]
    return n_pairs < least, [*limits, *(f"no category, the label is the relation: {name}" for name in bare)]


def _evidence(
    scores: HeadScores, rule: Rule, fdr: float, floor: float, tau: float
) -> tuple[Bool[np.ndarray, "layer head relation"], Bool[np.ndarray, "layer head relation"]]:
    """A mask of the relations that give a head their category, and of those that are as significant but too small."""
    data = scores.dataset
    phi = data["score"].values
    if rule == "maps":
        return phi >= tau, np.zeros(phi.shape, dtype=bool)
    if np.isnan(data["p_value"].values).all():
        raise ValueError(f'{scores.name!r} were not tested against a null; compute them again, or use rule="maps"')
    null = np.nan_to_num(data["null_phi"].values)
    sure = (data["q_value"].values <= fdr) & (phi > null)
    enough = sure & (phi - null >= floor)
    return enough, sure & ~enough


def _best(scores: HeadScores, where: np.ndarray, enough: np.ndarray, below: np.ndarray) -> dict[str, np.ndarray]:
    """The best relation of a category for each head: the largest score among those that are evidence; without any,
    among those below the floor; without any, among all."""
    data: xr.Dataset = scores.dataset.isel(relation=np.flatnonzero(where))
    enough, below = enough[..., where], below[..., where]
    statistics = {"score": "score", "low": "ci_low", "high": "ci_high", "p": "p_value", "q": "q_value"}
    columns = {name: data[old].values for name, old in statistics.items()}
    columns |= {"member": enough, "below_floor": below, "reading": data["reading"].values}
    phi = columns["score"]
    order = np.lexsort((-np.nan_to_num(phi, nan=-np.inf), ~below, ~enough, np.isnan(phi)))  # the last key comes first
    winner = order[..., :1]
    best = {name: np.take_along_axis(array, winner, axis=-1)[..., 0] for name, array in columns.items()}
    relation = data["relation"].values[winner[..., 0]]
    return best | {"best_relation": np.where(np.isnan(best["score"]), "", relation)}


def _acts_in_context(scores: HeadScores, causal: CausalEvidence, fdr: float) -> np.ndarray:
    """Whether patching a head changes a relation's answer [layer, head, relation]; NaN if it was not measured."""
    acts = np.full(scores.scores.shape, np.nan)
    for effect in (causal.total, causal.direct):
        if (effect.n_layers, effect.n_heads) != (scores.n_layers, scores.n_heads):
            raise ValueError(
                f"causal is from a model of {effect.n_layers} x {effect.n_heads} heads, but the scores are from one of "
                f"{scores.n_layers} x {scores.n_heads}"
            )
        data = effect.dataset
        for i, name in enumerate(scores.dataset["relation"].values.tolist()):
            if name in data["relation"].values:
                one = data.sel(relation=name)
                acting = (one["score"].values >= _CAUSAL_FLOOR) & (one["q_value"].values <= fdr)
                acts[..., i] = np.fmax(acts[..., i], np.where(np.isnan(one["score"].values), np.nan, acting))
    return acts


def _verdict(evidence: np.ndarray, acts: np.ndarray | None) -> np.ndarray:
    """The verdict on each head from weights and context, over the relations of a category (the last axis of both);
    empty if its weights are evidence only for relations that were not patched."""
    verdict = np.full(evidence.shape[:-1], "", dtype=object)
    if acts is not None:
        ran, acting = ~np.isnan(acts), acts == 1
        verdict[(evidence & ran).any(-1)] = "weights only"
        verdict[~evidence.any(-1) & acting.any(-1)] = "in context only"
        verdict[(evidence & acting).any(-1)] = "confirmed"
    return verdict


def _table_columns(
    scores: HeadScores,
    causal: CausalEvidence | None,
    enough: np.ndarray,
    below: np.ndarray,
    acts: np.ndarray | None,
    category_of: list[str],
) -> dict[str, Any]:
    """The columns of ``HeadLabels.table``, as variables over (layer, head, relation)."""
    data = scores.dataset
    columns: dict[str, Any] = {name: (_PER_RELATION, data[old].values) for name, old in _OF_SCORES.items()}
    columns |= {"is_evidence": (_PER_RELATION, enough), "is_below_floor": (_PER_RELATION, below)}
    columns["category_of"] = ("relation", text_array(category_of))
    for kind in ("total", "direct") if causal is not None else ():
        effect = getattr(causal, kind).dataset.reindex(relation=data["relation"].values)
        for suffix, old in (("", "score"), ("_low", "ci_low"), ("_high", "ci_high")):
            columns[kind + suffix] = (_PER_RELATION, effect[old].values)
    if acts is not None:
        verdict = _verdict(enough[..., None], acts[..., None])
        columns["relation_verdict"] = (_PER_RELATION, text_array(verdict))
    return columns
