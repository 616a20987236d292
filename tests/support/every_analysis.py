"""Every kind of analysis on a tiny model; each gives its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import mechheads as mh
from support.texts import CLEAN, CORRUPTED, PAIRS

QUIET: dict[str, Any] = {"progress": False}


def _read(*tensors: torch.Tensor) -> np.ndarray:
    return torch.cat([tensor.flatten() for tensor in tensors]).cpu().numpy()


def _run(model: mh.Model) -> mh.patching.HeadCache:
    return model.cache(CLEAN, **QUIET)


ANALYSES: dict[str, Callable[[mh.Model], Any]] = {
    "cache": lambda model: _read(_run(model).z.layer(2), _run(model).logits),
    "ablate": lambda model: mh.ablate(model, CLEAN, kind="mean", metric="kl_divergence", **QUIET).scores,
    "patch z": lambda model: mh.activation_patch(model, PAIRS, site="z", metric=mh.logit_diff, **QUIET).scores,
    "patch k": lambda model: mh.activation_patch(model, PAIRS, site="k", positions="each", **QUIET).scores,
    "paths": lambda model: mh.path_patch(model, PAIRS, receivers=["L2H1.q"], metric=mh.logit_diff, **QUIET).scores,
    "mlps": lambda model: mh.activation_patch(model, PAIRS, nodes="all", **QUIET).dataset["mlp_values"],
    "edges": lambda model: mh.patching.attribute_edges(model, PAIRS, **QUIET).score,
    "gim": lambda model: mh.patching.attribution_patch(model, PAIRS, gim=True, **QUIET).scores,
    "learned": lambda model: mh.patching.learn_ranking(model, PAIRS, updates=2, **QUIET).scores,
    "ships": lambda model: mh.ships(model, CLEAN, template="bare", **QUIET).scores,
    "angle": lambda model: mh.safety.generalized_ships(model, CLEAN, r=1, template="bare", **QUIET).scores,
    "profile": lambda model: mh.profile_heads(model, [list(range(3, 60))], window=16, **QUIET).values,
    "written": lambda model: _read(*(model.W_O[layer] for layer in range(3))),
    "read": lambda model: _read(model.W_Q[1], model.W_K[1], model.W_V[1]),
    "scales": lambda model: _read(model.attention_scale(0), model.final_scale()),
    "generate": lambda model: list(map(str, mh.generate(model, CLEAN, 3, **QUIET).texts)),
}
"""These run with weights on disk too."""
