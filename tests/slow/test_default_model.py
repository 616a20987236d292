"""The engine on the real model: a sample of heads, half of them on each prompt, against one full forward pass each."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import mechheads as mh
from support import oracles

SAMPLE = [(0, 2), (12, 7), (23, 4), (29, 1)]
CLEAN = ["The capital of France is", "Everyone knows that the capital of Spain is"]
CORRUPTED = ["The capital of Italy is", "Everyone knows that the capital of Japan is"]


Side = list[tuple[torch.Tensor, oracles.Activations, torch.Tensor]]


@pytest.fixture(scope="module")
def pairs() -> mh.PromptPairs:
    return mh.PromptPairs(CLEAN, CORRUPTED, answer=[" Paris", " Madrid"], wrong=[" Rome", " Tokyo"])


@pytest.fixture(scope="module")
def sides(model: mh.Model, pairs: mh.PromptPairs) -> list[Side]:
    """Ids, activations and logits of each prompt of the clean and of the corrupted side."""
    ids = [[oracles.ids_of(tokens, prompt) for prompt in range(len(pairs))] for tokens in pairs.tokens(model)]
    return [[(one, oracles.activations(model, one), oracles.forward(model, one)[0]) for one in side] for side in ids]


@pytest.mark.parametrize("site", ["z", "q", "k", "v", "pattern"])
def test_patching_equals_one_full_forward_a_head(model, pairs, sides, site):
    effect = mh.activation_patch(model, pairs, site=site, heads=SAMPLE)
    corrupted = pairs.tokens(model)[1]
    for prompt, ((_, source, _), (ids, base, logits)) in enumerate(zip(*sides, strict=True)):
        before = oracles.logit_diff(logits, corrupted, prompt)
        for layer, head in SAMPLE[prompt::2]:
            logits = oracles.patched_logits(model, ids, base, source, layer, head, site)
            expected = oracles.logit_diff(logits, corrupted, prompt) - before
            assert float(effect.values[layer, head, prompt]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "rule"), [("zero", "zero"), ("scaled", mh.patching.Scale(0.4)), ("uniform", "uniform"), ("mean", "mean")]
)
def test_ablation_equals_one_full_forward_a_head(model, sides, kind, rule):
    result = mh.ablate(model, CLEAN, intervention=rule, heads=SAMPLE)
    for prompt, (ids, _, before) in enumerate(sides[0]):
        for layer, head in SAMPLE[prompt::2]:
            new = oracles.ablated_z(kind, [run for _, run, _ in sides[0]], prompt, (layer, head), model.n_heads)
            expected = oracles.kl(before, oracles.with_z(model, ids, layer, head, new)[0])
            assert float(result.values[layer, head, prompt]) == pytest.approx(expected, abs=1e-4)


def test_one_head_carries_the_capital(model, pairs):
    effect = mh.activation_patch(model, pairs, heads=[(23, head) for head in range(9)], normalize=True)
    assert effect.heads(1) == (mh.HeadId(23, 4),)
    assert float(effect.scores[23, 4]) > 0.4
    assert np.nanmax(np.delete(effect.scores[23].values, 4)) < 0.3


def test_float32_is_good_enough_for_trial_runs(model):
    """Behind the control tokens that the vocabulary begins with, rounding alone can be 1e-3 of a final state."""
    ids = model.backend.trial_tokens(2, 6)
    exact = copy.deepcopy(model.model).double()
    logits = oracles.forward(model, ids)
    with torch.no_grad():
        off = (exact(ids) - logits).abs().max() / logits.std()
    assert 0 < float(off) < 1e-4
