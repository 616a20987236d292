"""Causal evidence: the effects of single heads on few-shot prompts of a relation.

- total effect: one head's output is restored in a run with another source word (activation patching);
- direct effect: the same, but only the head's own path to the logits changes (path patching).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.head_sets import set_bar
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.report import AnswerWarning
from mechheads.heads import HeadId, Heads, check_heads
from mechheads.interventions.basic import Patch
from mechheads.labels.few_shot import few_shot_pairs
from mechheads.labels.relations import Relations, load_relations
from mechheads.limits import current, settings
from mechheads.messages.arguments import NotNegative, Positive
from mechheads.messages.notices import stop_if, until_interrupted, warn
from mechheads.metrics import logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.activation import activation_patch
from mechheads.patching.path import path_patch
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult


@dataclass(frozen=True, eq=False)
class CausalEvidence(TableResult):
    """The effect of each head on each relation, measured on few-shot prompts.

    Attributes:
        total: the share of the logit difference that the head's output restores in the run with another source.
        direct: the share of it that the head restores directly, without later heads and MLPs.
        left_out: the reason for each relation without effects; also in ``total.provenance["left_out"]``.
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
        """The model, relations and options that repeat the analysis: the provenance of ``total``."""
        return self.total.provenance

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of the relations that were not left out."""
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
    heads: Heads | None = None,
) -> CausalEvidence:
    """Total and direct effect of every head on relations.

    The corrupted prompt asks about another source (``few_shot_pairs``). One head's z is restored from the clean run,
    and the effect is the share of the logit difference between the two targets that this restores: 0 none, 1 all.
    A relation is left out if too few prompts can be made, or if the model prefers the wrong target.

    Args:
        relations: as in ``relation_scores``, with few-shot templates; None for the package's.
        n: the largest number of prompt pairs for each relation. With n pairs no p is below 2 / 2^n.
        shots: the number of worked examples in each prompt.
        heads: the heads to test; every head if left out.

    Returns:
        Scores over (layer, head, relation), with values for each prompt (NaN beyond a relation's last). p and q test
        against no effect, q over all heads and relations. A further variable: ``gap`` (relation), the logit difference
        between the runs. After Ctrl-C, effects that were not measured are NaN.

    Raises:
        ValueError: if no relation can be tested.

    Elhelo & Geva 2025 (arXiv 2412.11965), section 4; for the direct effect Wang et al. 2022 (arXiv 2211.00593).

    >>> evidence = relation_evidence(model, "country_to_capital", n=2, shots=1, heads=["L23H4", "L5H0"])
    >>> evidence.total.heads(1), evidence.direct.heads(1)
    ((HeadId(layer=23, head=4),), (HeadId(layer=23, head=4),))
    """
    few_shot = {"n": n, "shots": shots, "seed": current().seed}
    loaded, left_out = load_relations(relations), dict[str, str]()
    chosen = None if heads is None else check_heads(heads, model.n_layers, model.n_heads)
    measured: dict[str, dict[str, HeadScores]] = {"total": {}, "direct": {}}
    gaps, sizes = dict[str, float](), dict[str, int]()
    bar = set_bar(2 * len(loaded), f"evidence for {len(loaded)} relation{'s' * (len(loaded) != 1)}")
    with until_interrupted() as interrupts, bar:
        for relation in loaded:
            name = relation.name
            try:
                pairs = few_shot_pairs(model, relation, **few_shot)
                spec = Spec(pairs, Patch(), logit_diff, HeadId(0, 0), base="corrupted")
                job = make_ready(CachedRuns(model, pairs), spec)
                gaps[name] = _gap(job, name)
            except ValueError as error:
                left_out[name] = str(error)
                bar.update(2)
                continue
            sizes[name] = len(pairs)
            effects = {
                "total": partial(activation_patch, heads=chosen, normalize=True),
                "direct": partial(path_patch, senders=chosen, direction="denoising"),
            }
            for what, effect in effects.items():
                with warnings.catch_warnings(), settings(progress=False):
                    warnings.simplefilter("ignore", AnswerWarning)  # the model need not know every pair of a relation
                    measured[what][name] = effect(job)
                bar.update()
                stop_if(measured[what][name].provenance["interrupted"])
    interrupts.stop_unless(measured["total"])
    if interrupts.interrupted:
        warn("relation_evidence was interrupted: effects not measured are NaN")
    if not sizes:
        reasons = "; ".join(left_out.values())
        raise ValueError(reasons if len(loaded) == 1 else f"relations: none of them can be tested: {reasons}")
    names = [relation.name for relation in loaded if relation.name not in left_out]

    def stacked(what: str) -> HeadScores:
        """The total or the direct effect on all relations that were not left out."""
        scores = measured[what]
        values = np.full((model.n_layers, model.n_heads, len(names), max(sizes.values())), np.nan)
        for name, of_relation in scores.items():
            whole = gaps[name] if what == "direct" else 1.0  # the total effect is a share already
            values[:, :, names.index(name), : sizes[name]] = np.asarray(of_relation.values) / whole
        of_each = {
            key: {name: scores[name].provenance.get(key) if name in scores else None for name in names}
            for key in ("prompts", "n_prompts")
        }
        return HeadScores.from_values(
            values,
            **_EFFECTS[what],
            extra={"relation": names},
            provenance=make_provenance(
                next((each.provenance for each in scores.values()), model.provenance()),
                few_shot,
                of_each,
                relations={relation.name: relation for relation in loaded},
                left_out=left_out,
                interrupted=interrupts.interrupted,
            ),
        ).assign(gap=("relation", [gaps.get(name, np.nan) for name in names]))

    return CausalEvidence(stacked("total"), stacked("direct"), left_out)


_EFFECTS: dict[str, dict[str, Any]] = {
    "total": {"name": "total effect on relations", "unit": "share restored", "kind": "activation_patch"},
    "direct": {"name": "direct effect on relations", "unit": "share restored", "kind": "path_patch"},
}


def _gap(job: Job, name: str) -> float:
    """The mean logit difference of the clean runs, minus the mean of the corrupted runs; checked to be positive."""
    gap = Evaluator(logit_diff, job.base, job.source).distance()
    if gap <= 0:
        raise ValueError(
            f"relation {name!r}: on few-shot prompts the model prefers the wrong one of the two targets "
            f"({gap:.2g} logits), so there is nothing that a head could restore"
        )
    return gap
