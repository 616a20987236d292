"""Causal evidence: the effects of single heads on few-shot prompts of a relation.

- total effect: one head's output is restored in a run with another source word (activation patching);
- direct effect: the same, but only what the head itself writes to the logits counts (path patching).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.head_sets import set_bar
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.report import AnswerWarning
from mechheads.heads import HeadId, Heads, check_heads
from mechheads.interventions.basic import Patch
from mechheads.labels.few_shot import few_shot_pairs
from mechheads.labels.relations import Relation, Relations, load_relations
from mechheads.limits import current, settings
from mechheads.messages.arguments import NotNegative, Positive
from mechheads.messages.notices import stop_if, until_interrupted, warn
from mechheads.metrics import logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.activation import activation_patch
from mechheads.patching.path import path_patch
from mechheads.progress import Bar
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult


@dataclass(frozen=True, eq=False)
class CausalEvidence(TableResult):
    """What each head does for each relation, measured on few-shot prompts.

    Attributes:
        total: share of the logit difference that the head's output restores in the run with another source.
        direct: share of it that the head restores by what it writes to the logits itself.
        left_out: relations without effects, and why; also in ``total.provenance["left_out"]``.
    """

    KIND = "relation_evidence"
    name, unit = "effects on relations", KINDS[KIND].unit

    total: HeadScores
    direct: HeadScores
    left_out: dict[str, str]

    @property
    def table(self) -> pd.DataFrame:
        """One row per head and relation: layer, head, relation, and the statistics as total_score, direct_score, ..."""
        keys = ["layer", "head", "relation"]
        tables = [
            scores.to_dataframe().set_index(keys).add_prefix(f"{what}_")
            for what, scores in (("total", self.total), ("direct", self.direct))
        ]
        return pd.concat(tables, axis=1).reset_index()

    @property
    def provenance(self) -> dict[str, Any]:
        """What is needed to repeat the analysis: the provenance of ``total``."""
        return self.total.provenance

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations that were not left out."""
        return tuple(self.total.dataset["relation"].values.tolist())

    def __repr__(self) -> str:
        more = f", {len(self.left_out)} left out" if self.left_out else ""
        n = len(self.relations)
        return f"<CausalEvidence: total and direct effects on {n} relation{'s' * (n != 1)}{more}>"

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        return self.total.top(10), [f"{name}: {why}" for name, why in self.left_out.items()]


@analysis
def relation_evidence(
    model: Model,
    relations: Relations | None = None,
    *,
    n: Positive = 16,
    shots: NotNegative = 4,
    template: int = 0,
    heads: Heads | None = None,
) -> CausalEvidence:
    """Total and direct effect of every head on relations.

    The corrupted run asks about another source (``few_shot_pairs``). One head's z is restored from the clean run, and
    the effect is the share of the logit difference between the two targets that this restores: 0 nothing, 1 all of it.
    If there are several relations, one is left out with a reason if too few prompts can be made, or if the model
    prefers the wrong target, so that there is nothing to restore.

    Args:
        relations: as in ``relation_scores``, with few-shot templates; None for those of the package.
        n: the largest number of prompt pairs for each relation. With n pairs no p is below 2 / 2^n: a few pairs
            separate large effects from small ones, but are not significant evidence of either.
        shots: the number of worked examples in each prompt.
        template: the index of the few-shot template.
        heads: the heads to test; every head if left out.

    Returns:
        Scores over (layer, head, relation), with values for each prompt (NaN beyond a relation's last). p and q test
        against no effect, q over all heads and relations. A further variable: ``gap`` (relation), the logit difference
        between the runs. After Ctrl-C the effects so far; the rest is NaN.

    Raises:
        ValueError: if an argument does not fit, or no relation can be tested.

    Elhelo & Geva 2025 (arXiv 2412.11965), section 4; for the direct effect Wang et al. 2022 (arXiv 2211.00593).

    >>> found = relation_evidence(model, "country_to_capital", n=2, shots=1, heads=["L23H4", "L5H0"])
    >>> found.total.heads(1), found.direct.heads(1)
    ((HeadId(layer=23, head=4),), (HeadId(layer=23, head=4),))
    """
    seed = current().seed
    loaded = load_relations(relations)
    chosen = None if heads is None else check_heads(heads, model.n_layers, model.n_heads)
    tests = _Tests(model, loaded, {"n": n, "shots": shots, "template": template, "seed": seed})
    bar = set_bar(2 * len(loaded), f"evidence for {len(loaded)} relation{'s' * (len(loaded) != 1)}")
    with until_interrupted() as interrupts, bar:
        for relation in loaded:
            tests.effects(relation, bar, chosen)
    interrupts.stop_unless(tests.measured["total"])
    if interrupts.interrupted:
        warn("relation_evidence was interrupted: effects not measured are NaN")
    if not tests.pairs:
        reasons = "; ".join(tests.left_out.values())
        raise ValueError(reasons if len(loaded) == 1 else f"relations: none of them can be tested: {reasons}")
    total, direct = tests.stack("total", interrupts.interrupted), tests.stack("direct", interrupts.interrupted)
    return CausalEvidence(total, direct, tests.left_out)


class _Tests:
    """Tests relations one after the other and keeps what was measured so far, also after an interrupt."""

    def __init__(self, model: Model, relations: Sequence[Relation], few_shot: dict[str, Any]) -> None:
        self.model, self.relations, self.few_shot = model, relations, few_shot
        self.pairs: dict[str, PromptPairs] = {}
        self.gaps: dict[str, float] = {}
        self.measured: dict[str, dict[str, HeadScores]] = {"total": {}, "direct": {}}
        self.left_out: dict[str, str] = {}

    def effects(self, relation: Relation, bar: Bar, heads: Any) -> None:
        """Measure total and direct effect of every head on a relation, or record why it is left out."""
        name = relation.name
        try:
            pairs = few_shot_pairs(self.model, relation, **self.few_shot)
            job = make_ready(self.model, Spec(pairs, Patch(), logit_diff, HeadId(0, 0), base="corrupted"))
            self.gaps[name] = _gap(job, name)
        except ValueError as error:
            self.left_out[name] = str(error)
            bar.update(2)
            return
        self.pairs[name] = pairs
        for what, scores in self.measured.items():
            with warnings.catch_warnings(), settings(progress=False):
                warnings.simplefilter("ignore", AnswerWarning)  # the model need not know every pair of a relation
                if what == "total":
                    scores[name] = activation_patch(job, heads=heads, normalize=True)
                else:
                    scores[name] = path_patch(job, senders=heads, direction="denoising")
            bar.update()
            stop_if(scores[name].provenance["interrupted"])

    def stack(self, what: str, interrupted: bool) -> HeadScores:
        """One of the two effects on all relations that were not left out."""
        model, scores = self.model, self.measured[what]
        names = [relation.name for relation in self.relations if relation.name not in self.left_out]
        longest = max(map(len, self.pairs.values()))
        values = np.full((model.n_layers, model.n_heads, len(names), longest), np.nan)
        for i, name in enumerate(names):
            if name in scores:
                whole = self.gaps[name] if what == "direct" else 1.0
                values[:, :, i, : len(self.pairs[name])] = np.asarray(scores[name].values) / whole
        metadata: dict[str, Any] = next((each.provenance for each in scores.values()), model.provenance())
        of_each = {
            key: {name: scores[name].provenance.get(key) if name in scores else None for name in names}
            for key in ("prompts", "n_prompts")
        }
        return HeadScores.from_values(
            values,
            **_EFFECTS[what],
            extra={"relation": names},
            provenance=make_provenance(
                metadata,
                self.few_shot,
                of_each,
                relations={relation.name: relation for relation in self.relations},
                left_out=self.left_out,
                interrupted=interrupted,
            ),
        ).assign(gap=("relation", [self.gaps.get(name, np.nan) for name in names]))


_EFFECTS: dict[str, dict[str, Any]] = {
    "total": {"name": "total effect on relations", "unit": "share restored", "kind": "activation_patch"},
    "direct": {"name": "direct effect on relations", "unit": "share restored", "kind": "path_patch"},
}


def _gap(job: Job, name: str) -> float:
    """The mean logit difference of the clean runs minus that of the corrupted ones."""
    gap = Evaluator(logit_diff, job.base, job.source).distance()
    if gap <= 0:
        raise ValueError(
            f"relation {name!r}: on few-shot prompts the model prefers the wrong one of the two targets "
            f"({gap:.2g} logits), so there is nothing that a head could restore"
        )
    return gap
