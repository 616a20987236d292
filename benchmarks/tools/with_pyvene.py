"""pyvene: one ``IntervenableModel`` per head, as in its tutorials.

Heads are the component ``head_attention_value_output``. Path patching restores later layers' ``attention_output``, as
in the ``path_patching_config`` of its README. The tutorials pass source prompts, which costs one more forward pass for
every head; here the activations are collected once and passed as ``source_representations``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyvene as pv  # pyright: ignore[reportMissingImports]
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.tools.base import Layout, Score, ids
from benchmarks.workloads import Head, ModelSpec, Workload

Z, ATTENTION, QUERY = "head_attention_value_output", "attention_output", "head_query_output"


class Pyvene:
    how = "one IntervenableModel per head with source_representations, two for W2b; logits of all positions"

    def load(self, spec: ModelSpec) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(spec.folder, dtype=torch.float32, trust_remote_code=False)
        self.model, self.device = model.to(spec.device).eval(), spec.device
        self.layout = Layout(self.model, self.model.config)

    @torch.no_grad()
    def prepare(self, workload: Workload) -> tuple[Score, list[Tensor], list[Tensor]]:
        """The score, z of the source run [prompt, head, pos, d_head] and the base run's attention outputs."""
        logits = self.model(input_ids=ids(workload.base, self.device)).logits[:, -1].clone()
        source, attention = [], []
        if workload.source is not None:
            source = self._collect(workload.source, Z, "h", self.layout.n_heads)
        if workload.kind == "path":
            attention = self._collect(workload.base, ATTENTION, "pos", workload.n_tokens)
        return Score(workload, logits, self.device), source, attention

    @torch.no_grad()
    def run(self, workload: Workload, prepared: Any, heads: Sequence[Head]) -> np.ndarray:
        score, source, attention = prepared
        base, n = ids(workload.base, self.device), len(workload.base)
        results = []
        for layer, head in heads:
            if workload.kind == "ablation":
                parts = [_part(layer, Z, "h", pv.ZeroIntervention)]
                logits = self._intervene(base, parts, {}, [[[head]] * n])[0]
            elif workload.kind == "activation" and workload.last_only:
                last = workload.n_tokens - 1
                parts, where = [_part(layer, Z, "h.pos", pv.VanillaIntervention)], [[[[head]] * n, [[last]] * n]]
                logits = self._intervene(base, parts, {0: source[layer][:, [head], last:]}, where)[0]
            elif workload.kind == "activation":
                parts = [_part(layer, Z, "h", pv.VanillaIntervention)]
                logits = self._intervene(base, parts, {0: source[layer][:, [head]]}, [[[head]] * n])[0]
            else:
                logits = self._path(workload, base, source[layer], attention, layer, head)
            results.append(score(logits))
        return np.array(results)

    def _path(
        self, workload: Workload, base: Tensor, source: Tensor, attention: list[Tensor], layer: int, head: int
    ) -> Tensor:
        n, all_positions = len(base), list(range(workload.n_tokens))
        to, receiver = (
            (self.layout.n_layers, None) if isinstance(workload.receiver, str) else workload.receiver or (0, 0)
        )
        frozen = range(layer + 1, to)
        parts = [_part(layer, Z, "h", pv.VanillaIntervention)]
        parts += [_part(later, ATTENTION, "pos", pv.VanillaIntervention) for later in frozen]
        values = dict(enumerate([source[:, [head]], *(attention[later] for later in frozen)]))
        where = [[[head]] * n, *([all_positions] * n for _ in frozen)]
        if receiver is None:
            return self._intervene(base, parts, values, where)[0]
        parts.append(_part(to, QUERY, "h", pv.CollectIntervention))
        query = self._intervene(base, parts, values, [*where, [[receiver]] * n])[1][0]
        parts = [_part(to, QUERY, "h", pv.VanillaIntervention)]
        return self._intervene(base, parts, {0: query}, [[[receiver]] * n])[0]

    def _collect(self, rows: list[list[int]], component: str, unit: str, count: int) -> list[Tensor]:
        """All heads or positions of a component, in every layer."""
        parts = [
            _part(layer, component, unit, pv.CollectIntervention) | {"max_number_of_units": count}
            for layer in range(self.layout.n_layers)
        ]
        where = [[list(range(count))] * len(rows)] * len(parts)
        return self._intervene(ids(rows, self.device), parts, {}, where)[1]

    def _intervene(
        self, base: Tensor, parts: list[dict[str, Any]], values: dict[int, Tensor], where: list[Any]
    ) -> tuple[Tensor, list[Tensor]]:
        """The logits at the last position, and the collected activations; ``values`` by the number of the part."""
        model = pv.IntervenableModel(pv.IntervenableConfig(parts), model=self.model)
        sources = {model.sorted_keys[part]: value for part, value in values.items()} or None
        places = {"sources->base": (None, where)}
        first, changed = model({"input_ids": base}, source_representations=sources, unit_locations=places)
        return changed.logits[:, -1], first[1] if isinstance(first, tuple) else []


def _part(layer: int, component: str, unit: str, intervention: Any) -> dict[str, Any]:
    return {"layer": layer, "component": component, "unit": unit, "intervention_type": intervention}
