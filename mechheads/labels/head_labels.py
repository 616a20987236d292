"""``HeadLabels``: the categories of each head, and the evidence for each category."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mechheads.heads import HeadLike, check_head, check_heads
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Rows, chosen, pairs_left_out

EVIDENCE = (
    "phi",
    "phi_low",
    "phi_high",
    "relation_reading",
    "contrast",
    "null_phi",
    "p",
    "q",
    "suppression",
    "total",
    "total_low",
    "total_high",
    "direct",
    "direct_low",
    "direct_high",
    "relation_verdict",
)
"""Columns of ``HeadLabels.table``, each a variable over (layer, head, relation); columns not measured are left out."""
_FIRST = ("head", "label", "relation", "phi", "null_phi", "phi_low", "q", "reading")
"""The columns of ``HeadLabels.table`` that are shown first."""


class HeadLabels(HeadScores):
    """The categories of every head, each with the relation that is the strongest evidence for it.

    ``score`` over (layer, head, category) is the relation score phi of the category's best relation, and
    ``ci_low``, ``ci_high``, ``p_value`` and ``q_value`` belong to that relation; the interval does not account for
    its selection as the best of several. Further variables over the same dimensions: ``member`` (whether the head has
    this category), ``below_floor`` (whether there is evidence for it that is too small), ``best_relation``,
    ``reading`` (how the head reads tokens for that relation), ``suppresses`` (whether it suppresses the relation
    instead of implementing it) and ``verdict``, which compares the weights with what the head does in context:
    ``"confirmed"`` if both agree on the same relation, ``"weights only"`` or ``"in context only"``, and empty if there
    is evidence from neither, or if the relations of the weights were not run. ``table`` has everything that was
    measured, relation by relation; ``top`` and ``heads`` name members only.
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
        found = check_head(head, self.n_layers, self.n_heads)
        member = self.dataset["member"].values[found.layer, found.head]
        return tuple(name for name, has in zip(self.categories, member, strict=True) if has)

    def counts(self, *, once: bool = False) -> dict[str, int]:
        """How many heads have each category, none, and several; evidence below the floor does not count.

        A head with two categories counts for both of them and also under "2 categories".

        Args:
            once: count such a head under "2 categories" alone, as the map of categories colours it; these numbers add
                up to that of all heads with scores.
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

        The other heads follow in order of layer and head. Within a head, what gives its label comes first, then the
        rest by phi.

        Columns: head, relation, category, phi with its interval, how the head reads tokens (``reading``), the graded
        score (``contrast``), the mean under the null, p and q, and the suppression score. With causal evidence, the
        total and the direct effect with their intervals and the verdict on the head in that relation. Then whether the
        relation is evidence for the label, whether it is as significant but below the floor, whether it is the best of
        its category, the head's label, and the verdict on the head in that category. If an interrupted run did not
        reach a head, its label is "not reached".

        Args:
            head: only this one.
            columns: only these, in this order. All columns are there by default, but at most eight are shown.

        Raises:
            ValueError: if there is no such head or column.
        """
        wanted = None if head is None else check_head(head, self.n_layers, self.n_heads)
        data = self.dataset
        measured = [name for name in EVIDENCE if name in data]
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
                found = {name: values[one.layer][one.head][i] for name, values in cells.items()}
                at = one.layer, one.head, index[category_of[i]]
                named = {"head": str(one), "relation": relations[i], "category": category_of[i]}
                about = {"is_best": bool(best[at] == relations[i]), "label": label, "verdict": str(verdicts[at])}
                rows.append(named | found | about)
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
