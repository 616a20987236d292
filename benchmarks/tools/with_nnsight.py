"""nnsight: one trace per head, as its documentation patches and ablates heads before the output projection.

The clean run is cached once, and every trace writes into the projection's live input; see "Layer x position map" and
"Per-head attention" in the documentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nnsight  # pyright: ignore[reportMissingImports]
import numpy as np
import torch
from torch import Tensor

from benchmarks.tools.base import Layout, Score, ids
from benchmarks.workloads import Head, ModelSpec, Workload


class Nnsight:
    how = "one trace per head, two for W2b; logits of all positions"

    def load(self, spec: ModelSpec) -> None:
        self.model = nnsight.TransformersModel(
            spec.folder, task="text-generation", dispatch=True, dtype=torch.float32, device_map=spec.device
        )
        self.layout, self.device = Layout(self.model, self.model.config), spec.device

    @torch.no_grad()
    def prepare(self, workload: Workload) -> tuple[Score, list[Tensor], list[Tensor]]:
        logits, base = self._cache(workload.base)
        source = [] if workload.source is None else self._cache(workload.source)[1]
        return Score(workload, logits, self.device), base, source

    @torch.no_grad()
    def run(self, workload: Workload, prepared: Any, heads: Sequence[Head]) -> np.ndarray:
        score, base, source = prepared
        tokens = ids(workload.base, self.device)
        results = []
        for layer, head in heads:
            if workload.kind == "ablation":
                logits = self._zero(tokens, layer, head)
            elif workload.kind == "activation":
                where = slice(-1 if workload.last_only else 0, None)
                logits = self._patch(tokens, source[layer], layer, head, where)
            else:
                logits = self._path(workload, tokens, base, source[layer], layer, head)
            results.append(score(logits))
        return np.array(results)

    def _cache(self, rows: list[list[int]]) -> tuple[Tensor, list[Tensor]]:
        """The logits at the last position and z of each layer [prompt, pos, head * d_head]."""
        layout = self.layout
        with self.model.trace(ids(rows, self.device)):
            z = nnsight.save([layout.output(layer).input.clone() for layer in range(layout.n_layers)])
            logits = self.model.output.logits[:, -1].clone().save()
        return logits, z

    def _zero(self, tokens: Tensor, layer: int, head: int) -> Tensor:
        output, columns = self.layout.output(layer), self.layout.head(head)
        with self.model.trace(tokens):
            output.input[:, :, columns] = 0
            logits = self.model.output.logits[:, -1].save()
        return logits

    def _patch(self, tokens: Tensor, source: Tensor, layer: int, head: int, where: slice) -> Tensor:
        output, columns = self.layout.output(layer), self.layout.head(head)
        with self.model.trace(tokens):
            output.input[:, where, columns] = source[:, where, columns]
            logits = self.model.output.logits[:, -1].save()
        return logits

    def _path(
        self, workload: Workload, tokens: Tensor, base: list[Tensor], source: Tensor, layer: int, head: int
    ) -> Tensor:
        layout, columns = self.layout, self.layout.head(head)
        if isinstance(workload.receiver, str) or workload.receiver is None:
            with self.model.trace(tokens):
                layout.output(layer).input[:, :, columns] = source[:, :, columns]
                for later in range(layer + 1, layout.n_layers):
                    layout.output(later).input[:] = base[later]
                logits = self.model.output.logits[:, -1].save()
            return logits
        to, receiver = workload.receiver[0], layout.head(int(workload.receiver[1]))
        with self.model.trace(tokens):
            layout.output(layer).input[:, :, columns] = source[:, :, columns]
            for later in range(layer + 1, to):
                layout.output(later).input[:] = base[later]
            query = layout.query(to).output[:, :, receiver].clone().save()
        with self.model.trace(tokens):
            layout.query(to).output[:, :, receiver] = query
            logits = self.model.output.logits[:, -1].save()
        return logits
