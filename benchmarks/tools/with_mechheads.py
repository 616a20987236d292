"""mechheads: one call sweeps over all heads; for gates and labels, the part of a call that plain loops repeat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import mechheads as mh
from benchmarks.tools.base import EPSILON, WithoutPreparing
from benchmarks.workloads import MIN_PAIRS, UPDATES, Head, Workload
from mechheads.gating.descent import Schedule
from mechheads.gating.fit import Fit, Stage, TargetLoss, run_stages
from mechheads.gating.fitted import FitSettings, Rules
from mechheads.gating.gates import rows_at_once
from mechheads.interventions.basic import Scale, UniformAttention

LR = (0.1, 0.01)
"""The learning rate of the first and of the last update of gates."""


class Mechheads(WithoutPreparing):
    how = "one call for all heads, including the cached runs and the statistics"

    @mh.settings(progress=False)
    def run(self, workload: Workload, prepared: None, heads: Sequence[Head]) -> np.ndarray:
        if workload.kind == "gates":
            return gates(self.model, mh.Task(workload.base, [[one] for one in workload.answer or ()])).ravel()
        if workload.kind == "labels":
            scores = labels(self.model)
        elif workload.kind in ("undifferentiated", "scaling"):
            rule = UniformAttention(EPSILON) if workload.kind == "undifferentiated" else Scale(EPSILON)
            scores = mh.ships(self.model, mh.Prompts(workload.base), intervention=rule, heads=heads)
        elif workload.kind == "ablation":
            scores = mh.ablate(self.model, workload.base, heads=heads)
        elif workload.kind == "activation":
            pairs = self._pairs(workload, corrupted_base=True)
            where = "last" if workload.last_only else "all"
            scores = mh.activation_patch(self.model, pairs, heads=heads, positions=where)
        else:
            pairs = self._pairs(workload, corrupted_base=False)
            to = workload.receiver
            receivers = [f"{mh.HeadId(*to)}.q"] if isinstance(to, tuple) else "final"
            scores = mh.path_patch(self.model, pairs, receivers=receivers, senders=heads)
        if scores.provenance.get("interrupted"):
            raise KeyboardInterrupt
        layers, numbers = np.array(heads).T
        return scores.scores.to_numpy()[layers, numbers].reshape(len(heads), -1).mean(1)

    @staticmethod
    def _pairs(workload: Workload, *, corrupted_base: bool) -> mh.PromptPairs:
        base, source = workload.base, workload.source or []
        clean, corrupted = (source, base) if corrupted_base else (base, source)
        return mh.PromptPairs(clean, corrupted, workload.answer, workload.wrong)


def gates(model: mh.Model, task: mh.Task) -> np.ndarray:
    """Gates [layer, head] after the first updates of ``fit_gates`` with seed 0."""
    tokens = task.tokens(model)
    rules = Rules((0,), len(task), FitSettings(tolerance=None))
    stage = Stage(("none",), (Schedule(0.0, UPDATES, LR),))
    fit = Fit(model, TargetLoss(tokens, "mean"), len(tokens), [stage], rules, task.name, {})
    return run_stages(fit, rows_at_once(model, tokens), None)["none"][0]


def labels(model: mh.Model) -> mh.HeadScores:
    """Relation scores in the paper's form, without the null."""
    return mh.relation_scores(model, source="first_mlp", norm="raw", min_pairs=MIN_PAIRS, min_effect=1.0)
