"""TransformerLens 4, with a bridge.

Activation patching uses its ``patching.generic_activation_patch``, which the ``get_act_patch_*`` functions call, with a
table of indices for the heads of the sample. It has no functions for ablation and path patching, so hooks are used, as
in its tutorials; Ships are hooks on q or z. Path patching takes two runs: one with the sender patched and every other
head's z frozen, which caches the receiver's query, and one with this query in place of the receiver's own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.tools.base import EPSILON, Score, ids, mechheads_model
from benchmarks.workloads import Head, ModelSpec, Workload

Hook = tuple[str, Callable[..., Any]]
SHRINKS = {"ablation": ("z", 0.0), "undifferentiated": ("q", EPSILON), "scaling": ("z", EPSILON)}
"""For each kind of ablation, the activation and the factor that it is multiplied by."""


class TransformerLens:
    how = "generic_activation_patch, or hooks: one forward pass per head, two for W2b; logits of all positions"

    def load(self, spec: ModelSpec) -> None:
        self.model, self.device = mechheads_model(spec).model, spec.device
        self.n_layers = self.model.cfg.n_layers

    @torch.no_grad()
    def prepare(self, workload: Workload) -> tuple[Score, Any, Any]:
        """The score, and z of both runs."""
        logits, base = self._cache(workload.base)
        source = None if workload.source is None else self._cache(workload.source)[1]
        return Score(workload, logits[:, -1].clone(), self.device), base, source

    @torch.no_grad()
    def run(self, workload: Workload, prepared: Any, heads: Sequence[Head]) -> np.ndarray:
        score, base, source = prepared
        tokens = ids(workload.base, self.device)
        if workload.kind == "activation":
            return self._patch(workload, tokens, score, source, heads)
        if workload.kind in SHRINKS:
            hooks = (self._shrink(*SHRINKS[workload.kind], *head) for head in heads)
            return np.array([score(self.model.run_with_hooks(tokens, fwd_hooks=h)[:, -1]) for h in hooks])
        return np.array([score(self._path(workload, tokens, base, source, head)[:, -1]) for head in heads])

    def _cache(self, rows: list[list[int]]) -> tuple[Tensor, Any]:
        return self.model.run_with_cache(ids(rows, self.device), names_filter=lambda name: name.endswith("attn.hook_z"))

    def _patch(
        self, workload: Workload, tokens: Tensor, score: Score, source: Any, heads: Sequence[Head]
    ) -> np.ndarray:
        import pandas as pd
        from transformer_lens import patching

        setter = patching.layer_head_vector_patch_setter
        table = pd.DataFrame(heads, columns=["layer", "head_index"])
        if workload.last_only:
            setter = patching.layer_pos_head_vector_patch_setter
            table.insert(1, "pos", workload.n_tokens - 1)
        with redirect_stderr(io.StringIO()):  # its progress bar
            values = patching.generic_activation_patch(
                self.model, tokens, source, lambda logits: score.value(logits[:, -1]), setter, "z", index_df=table
            )
        return torch.as_tensor(values).double().cpu().numpy() - score.base

    def _shrink(self, site: str, factor: float, layer: int, head: int) -> list[Hook]:
        def shrink(value: Tensor, hook: Any) -> Tensor:
            value[:, :, head] *= factor
            return value

        return [(f"blocks.{layer}.attn.hook_{site}", shrink)]

    def _path(self, workload: Workload, tokens: Tensor, base: Any, source: Any, sender: Head) -> Tensor:
        layer, head = sender

        def send(z: Tensor, hook: Any) -> Tensor:
            z[:, :, head] = source[_z(layer)][:, :, head]
            return z

        def freeze(z: Tensor, hook: Any, name: str) -> Tensor:
            return base[name]

        hooks: list[Hook] = [(_z(layer), send)]
        hooks += [(name, partial(freeze, name=name)) for name in map(_z, range(layer + 1, self.n_layers))]
        if isinstance(workload.receiver, str) or workload.receiver is None:
            return self.model.run_with_hooks(tokens, fwd_hooks=hooks)
        to, receiver = workload.receiver
        query = f"blocks.{to}.attn.hook_q"
        kept: dict[str, Tensor] = {}

        def keep(q: Tensor, hook: Any) -> None:
            kept["q"] = q[:, :, receiver].clone()

        def receive(q: Tensor, hook: Any) -> Tensor:
            q[:, :, receiver] = kept["q"]
            return q

        self.model.run_with_hooks(tokens, return_type=None, fwd_hooks=[*hooks, (query, keep)])
        return self.model.run_with_hooks(tokens, fwd_hooks=[(query, receive)])


def _z(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_z"
