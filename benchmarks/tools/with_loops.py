"""Plain loops, where TransformerLens has nothing of the kind.

Gates are fitted as their paper describes it: frozen weights, z times the gates in a hook of TransformerLens, logits of
the whole vocabulary at every position, the targets' log-probabilities gathered from them, and torch.optim.Adam. Labels
are the paper's formula: for every relation and head E' @ W_V @ W_O @ W_U, then topk, with tokens through the first MLP
and raw weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mechheads as mh
from benchmarks.tools.base import WithoutPreparing
from benchmarks.tools.with_mechheads import LR
from benchmarks.workloads import UPDATES, Head, Workload, usable
from mechheads.gating.fit import start_logits


class Loops(WithoutPreparing):
    how = "gates: hooks and torch.optim.Adam; labels: products of weights and topk for each relation and head"

    def run(self, workload: Workload, prepared: None, heads: Sequence[Head]) -> np.ndarray:
        if workload.kind == "labels":
            return labels(self.model, heads)
        return gates(self.model, mh.Task(workload.base, [[one] for one in workload.answer or ()])).ravel()


def gates(model: mh.Model, task: mh.Task) -> np.ndarray:
    """Gates [layer, head] after the first updates with seed 0."""
    tokens = task.tokens(model)
    for weight in model.model.parameters():
        weight.requires_grad_(False)
    logits = start_logits([0], model.n_layers, model.n_heads)[0].to(model.device).requires_grad_()
    adam = torch.optim.Adam([logits], lr=LR[0])
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, LR[1] / LR[0], UPDATES)

    def gate(z: Tensor, hook: Any, layer: int, gates: Tensor) -> Tensor:
        return z * gates[layer, :, None].to(z.dtype)

    for _ in range(UPDATES):
        gates = logits.sigmoid()
        hooks = [
            (f"blocks.{layer}.attn.hook_z", partial(gate, layer=layer, gates=gates)) for layer in range(model.n_layers)
        ]
        log_p = model.model.run_with_hooks(tokens.ids, fwd_hooks=hooks)[:, :-1].float().log_softmax(-1)
        each = log_p.gather(2, tokens.ids[:, 1:, None])[..., 0] * tokens.is_target[:, 1:]
        loss = -(each.sum(1) / tokens.is_target.sum(1)).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        slower.step()
    return logits.sigmoid().detach().cpu().numpy()


@torch.no_grad()
def labels(model: mh.Model, heads: Sequence[Head]) -> np.ndarray:
    """The share of each relation's pairs that a head maps, averaged over the relations [head]."""
    relations, shares = usable(model), []
    for layer, head in heads:
        hits = []
        for kept in relations:
            source, target = (torch.tensor(ids) for ids in zip(*kept.tokens, strict=True))
            seen = model.first_mlp(model.W_E[source]) if layer else model.W_E[source]
            rows = seen @ model.W_V[layer][head] @ model.W_O[layer][head] @ model.W_U
            top = rows.topk(1 if kept.relation.copying else 10, dim=1).indices
            hits.append((top == target[:, None]).any(1).double().mean())
        shares.append(float(torch.stack(hits).mean()))
    return np.array(shares)
