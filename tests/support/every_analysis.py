"""Every kind of analysis on a tiny model; each gives its numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import mechheads as mh
from support.texts import CLEAN, CORRUPTED, PAIRS, WORD_PAIRS


def _read(*tensors: torch.Tensor) -> np.ndarray:
    return torch.cat([tensor.flatten() for tensor in tensors]).float().cpu().numpy()


def _run(model: mh.Model) -> mh.patching.HeadCache:
    return model.cache(CLEAN)


ANALYSES: dict[str, Callable[[mh.Model], Any]] = {
    "cache": lambda model: _read(_run(model).z.layer(2), _run(model).logits),
    "ablate": lambda model: mh.ablate(model, CLEAN, kind="mean", metric="kl_divergence").scores,
    "patch z": lambda model: mh.activation_patch(model, PAIRS, site="z", metric=mh.logit_diff).scores,
    "patch k": lambda model: mh.activation_patch(model, PAIRS, site="k", positions="each").scores,
    "paths": lambda model: mh.path_patch(model, PAIRS, receivers=["L2H1.q"], metric=mh.logit_diff).scores,
    "mlps": lambda model: mh.activation_patch(model, PAIRS, nodes="all").dataset["mlp_values"],
    "edges": lambda model: mh.patching.attribute_edges(model, PAIRS).score,
    "learned": lambda model: mh.patching.learn_ranking(model, PAIRS, updates=2).scores,
    "ships": lambda model: mh.ships(model, CLEAN, template="bare").scores,
    "angle": lambda model: mh.safety.generalized_ships(model, CLEAN, r=1, template="bare").scores,
    "profile": lambda model: mh.profile_heads(model, [list(range(3, 60))], window=16).values,
    "written": lambda model: _read(*(model.W_O[layer] for layer in range(3))),
    "read": lambda model: _read(model.W_Q[1], model.W_K[1], model.W_V[1]),
    "scales": lambda model: _read(model.attention_scale(0), model.final_scale()),
    "generate": lambda model: list(map(str, mh.generate(model, CLEAN, 3).texts)),
}

_ONE_PAIR = mh.PromptPairs(CLEAN[:1], CORRUPTED[:1], answer=[" Paris"], wrong=[" Rome"])
_WORDS = mh.Relation("words", None, WORD_PAIRS)
_SMALL = mh.patching.Limits(memory=200_000, tokens=20)

MORE: dict[str, Callable[[mh.Model], Any]] = {
    "patch q": lambda model: mh.activation_patch(model, PAIRS, site="q").scores,
    "patch v": lambda model: mh.activation_patch(model, PAIRS, site="v").scores,
    "patch pattern": lambda model: mh.activation_patch(model, _ONE_PAIR, site="pattern").scores,
    "uniform": lambda model: mh.sweep(model, CLEAN, intervention=mh.patching.UniformAttention()).scores,
    "small parts": lambda model: mh.ablate(model, CLEAN, budget=_SMALL).scores,
    "sets": lambda model: mh.patching.patch_sets(model, PAIRS, [["L0H1"], ["L0H1", "L2H2"]]).values,
    "paths of MLPs": lambda model: mh.path_patch(model, PAIRS, nodes="all", receivers=["L2H1.v"]).scores,
    "frozen MLPs": lambda model: mh.path_patch(model, PAIRS, mlps="frozen").scores,
    "self-repair": lambda model: mh.patching.self_repair(model, PAIRS).values,
    "attribution": lambda model: mh.patching.attribution_patch(model, PAIRS, steps=2).scores,
    "logits": lambda model: mh.behaviour.logit_attribution(model, PAIRS).values,
    "composition": lambda model: mh.behaviour.composition_scores(model, "K").scores.values,
    "copying": lambda model: mh.behaviour.copying_scores(model).scores.values,
    "relation": lambda model: mh.relation_scores(model, _WORDS, k=2, min_pairs=1).scores.values,
    "contribution": lambda model: (
        mh.safety.refusal_contribution(model, CLEAN[:2], CORRUPTED[:2], template="bare").values
    ),
    "sahara": lambda model: repr(mh.safety.sahara(model, CLEAN, 2, template="bare")),
    "result": lambda model: _read(_run(model).result["L2H1"]),
    "first MLP": lambda model: _read(model.first_mlp(model.W_E[:4])),
}
