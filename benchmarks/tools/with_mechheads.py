"""mechheads: one call sweeps over all heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import mechheads as mh
from benchmarks.tools.base import mechheads_model
from benchmarks.workloads import Head, ModelSpec, Workload


class Mechheads:
    how = "one call for all heads, including the cached runs and the statistics"

    def load(self, spec: ModelSpec) -> None:
        self.model = mechheads_model(spec)

    def prepare(self, workload: Workload) -> None:
        return None

    @mh.settings(progress=False)
    def run(self, workload: Workload, prepared: None, heads: Sequence[Head]) -> np.ndarray:
        if workload.kind == "ablation":
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
        return scores.scores.to_numpy()[layers, numbers].reshape(len(heads))

    @staticmethod
    def _pairs(workload: Workload, *, corrupted_base: bool) -> mh.PromptPairs:
        base, source = workload.base, workload.source or []
        clean, corrupted = (source, base) if corrupted_base else (base, source)
        return mh.PromptPairs(clean, corrupted, workload.answer, workload.wrong)
