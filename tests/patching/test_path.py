"""Path patching against full forward passes with hooks, TransformerLens' own function, laws, and results by hand."""

from __future__ import annotations

import numpy as np
import pytest

import mechheads as mh
from support import oracles
from support.levels import ONE_FIRST, on_two
from support.releases import only_on_4
from support.texts import CLEAN, CORRUPTED, PAIRS

ARCHITECTURES = ONE_FIRST

TOLERANCE = 1e-4
RECEIVERS = [
    ["final"],
    ["L2H1.q"],
    ["L2H3.k"],
    ["L2H0.v"],
    ["L1.mlp"],
    ["L1H2.q", "L2H1.k", "L2H1.v", "L2H0.k", "L2.mlp"],
]


def by_loop(model, receivers, mlps="recomputed", direction="noising", at=None) -> np.ndarray:
    """What a sender should get [receivers, layer, head, prompt], for the heads whose turn it is at a prompt."""
    clean, corrupted = PAIRS.tokens(model)
    base, source = (clean, corrupted) if direction == "noising" else (corrupted, clean)
    expected = np.full((len(receivers), model.n_layers, model.n_heads, len(PAIRS)), np.nan)
    for prompt in range(len(PAIRS)):
        ids, other = oracles.ids_of(base, prompt), oracles.ids_of(source, prompt)
        if at is not None and at >= ids.shape[1]:
            continue
        runs = [oracles.activations(model, each) for each in (ids, other)]
        before = oracles.logit_diff(oracles.forward(model, ids)[0], base, prompt)
        for layer, head in np.argwhere(oracles.turns(model, len(PAIRS))[..., prompt]):
            first, seen = oracles.path_first_run(model, ids, *runs, (layer, head), mlps, at)
            for i, each in enumerate(receivers):
                logits = first if each == ["final"] else oracles.path_second_run(model, ids, seen, each)
                expected[i, layer, head, prompt] = oracles.logit_diff(logits, base, prompt) - before
    return expected


def same(values, expected, model) -> None:
    """Compare each head at the prompt where it is its turn."""
    turns = oracles.turns(model, len(PAIRS))
    np.testing.assert_allclose(np.asarray(values)[turns], expected[turns], atol=TOLERANCE)


@pytest.mark.release
@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
def test_every_sender_equals_full_forwards_with_hooks(small, mlps):
    for receivers, expected in zip(RECEIVERS, by_loop(small, RECEIVERS, mlps), strict=True):
        ours = mh.path_patch(small, PAIRS, receivers=receivers, mlps=mlps)
        same(ours.values, expected, small)
        if receivers == ["L1.mlp"]:
            np.testing.assert_array_equal(ours.values[2], 0)


@on_two
def test_the_other_direction(small):
    some = [RECEIVERS[0], RECEIVERS[-1]]
    for receivers, expected in zip(some, by_loop(small, some, direction="denoising"), strict=True):
        ours = mh.path_patch(small, PAIRS, receivers=receivers, direction="denoising")
        same(ours.values, expected, small)


def test_a_matrix_holds_the_single_receivers(small):
    names = ["L2H1.q", "final", "L1.mlp"]
    matrix = mh.path_matrix(small, PAIRS, receivers=names)
    for name in names:
        alone = mh.path_patch(small, PAIRS, receivers=name)
        np.testing.assert_allclose(matrix.values.sel(receiver=name), alone.values, atol=1e-5)


@only_on_4
@pytest.mark.parametrize(("name", "site"), [("gpt2", "q"), ("gpt2", "k"), ("gpt2", "v"), ("llama", "q")])
def test_transformerlens_own_direct_paths_are_the_same(loaded, name, site):
    model = loaded(name)
    pairs = mh.PromptPairs(CLEAN[:1] * 2, CORRUPTED[:1] * 2, [" Paris", " Madrid"], [" Rome", " Berlin"])
    receivers = [f"L{layer}H{head}.{site}" for layer in (1, 2) for head in range(model.n_heads)]
    ours = mh.path_matrix(model, pairs, receivers=receivers, direction="denoising", mlps="frozen", senders=["L0H1"])
    theirs = oracles.direct_paths(model, pairs, (0, 1), site)[1:].flatten()
    np.testing.assert_allclose(ours.scores[0, 1], theirs, atol=TOLERANCE)
