"""Backups against two loops of full forward passes, and in a model in which heads stand in for another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.patching.backups import patching_backups
from support import oracles
from support.levels import ONE_FIRST
from support.texts import CLEAN, PAIRS

ARCHITECTURES = ONE_FIRST
GONE = ["L0H1", "L1H2"]


def larger_by(alone: np.ndarray, given: np.ndarray) -> np.ndarray:
    """How much each effect [prompt] is larger, in the direction of the larger of both means."""
    rows = []
    for one, other in zip(alone.reshape(-1, alone.shape[-1]), given.reshape(-1, alone.shape[-1]), strict=True):
        larger = other.mean() if abs(other.mean()) >= abs(one.mean()) else one.mean()
        rows.append((other - one) * (-1 if larger < 0 else 1))
    return np.array(rows).reshape(alone.shape)


@pytest.mark.parametrize("metric", ["kl_divergence", "logit_diff"])
def test_growth_is_the_difference_of_two_effects(small, metric):
    heads = [(0, 0), (1, 1), (2, 3)]
    found = mh.patching.backups(small, PAIRS, GONE, intervention="zero", metric=metric, draws=0, among=heads)
    tokens = PAIRS.tokens(small)[0]
    gone = {(0, 1): 0.0, (1, 2): 0.0}

    def effect(prompt: int, before: dict, after: dict) -> float:
        old, new = (
            oracles.forward(small, oracles.ids_of(tokens, prompt), oracles.z_hooks(z))[0] for z in (before, after)
        )
        if metric == "kl_divergence":
            return oracles.kl(old, new)
        return oracles.logit_diff(new, tokens, prompt) - oracles.logit_diff(old, tokens, prompt)

    for head in heads:
        own = {head: 0.0}
        alone, given = (
            np.array([effect(prompt, without, without | own) for prompt in range(len(PAIRS))]) for without in ({}, gone)
        )
        np.testing.assert_allclose(found.dataset["alone"].values[head], alone, atol=1e-4)
        np.testing.assert_allclose(found.values.values[head], larger_by(alone, given), atol=1e-4)
        assert (found.scores.values[head] > 0) == (abs(given.mean()) > abs(alone.mean()))


def test_heads_that_are_gone_have_no_score_and_are_not_missing(small):
    found = mh.patching.backups(small, CLEAN, GONE, draws=1, intervention="zero")
    assert np.isnan(found.scores.values[[0, 1], [1, 2]]).all() and np.isfinite(found.scores.values).sum() == 10
    assert found.missing == ()
    assert found.provenance["given"] == {"L0H1": "Zero()", "L1H2": "Zero()"}
    assert found.name == "growth of effects, Zero(), given that L0H1 and L1H2 are zeroed"


def test_random_sets_are_of_the_same_layers_and_a_seed_draws_them(small):
    options: dict[str, Any] = {"draws": 3, "seed": 4, "intervention": "zero"}
    found = mh.patching.backups(small, CLEAN, GONE, **options)
    sets = found.provenance["draws"]
    assert [[name[:2] for name in each] for each in sets] == [["L0", "L1"]] * 3
    assert all(name not in GONE for each in sets for name in each)
    assert sets == mh.patching.backups(small, CLEAN, GONE, **options, among="L2H0").provenance["draws"]
    drawn, score = found.dataset["drawn"].values, found.scores.values
    for i, each in enumerate(sets):
        expected = mh.ablate(small, CLEAN, given=each).scores - mh.ablate(small, CLEAN).scores
        np.testing.assert_allclose(drawn[i], expected, atol=1e-6)
    smaller = [
        [draw[at] < score[at] for draw in drawn if np.isfinite(draw[at])]
        for at in map(tuple, np.argwhere(np.isfinite(score)).tolist())
    ]
    expected = [float(np.mean(each)) if each else np.nan for each in smaller]
    np.testing.assert_allclose(found.dataset["beyond"].values[np.isfinite(score)], expected)
    assert 0 <= found.provenance["beyond"] <= 1


def test_backups_of_a_patching_are_the_difference_of_two_patchings_in_the_metric_itself():
    made = mh.testing.behaving_model()
    pairs = made.pairs()
    some = mh.PromptPairs(*(getattr(pairs, side)[:8] for side in ("clean", "corrupted", "answer", "wrong")))
    plain, share = (mh.activation_patch(made.model, some, normalize=each) for each in (False, True))
    found = patching_backups(made.model, some, share, mh.logit_diff)
    (first,) = (head for head, it in made.heads.items() if it.name == "primary")
    assert found.provenance["given"] == {str(first): "Zero()"} and found.unit == "logits"
    given = mh.activation_patch(made.model, some, given=first).values.values
    np.testing.assert_allclose(found.values, larger_by(plain.values.values, given), atol=1e-4)
    backups = {head for head, it in made.heads.items() if it.name == "backup"}
    assert backups <= set(found.heads(3))


def test_nothing_stands_in_for_heads_that_do_nothing(small):
    patching = mh.activation_patch(small, PAIRS, normalize=True)
    assert patching_backups(small, PAIRS, patching, mh.logit_diff) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: mh.patching.backups(m, CLEAN), "heads is missing; name the heads that are gone"),
        (lambda m: mh.patching.backups(m, CLEAN, "L9H0"), "heads: head L9H0 is out of range"),
        (lambda m: mh.patching.backups(m, CLEAN, {"L0H1": "zer"}), r"heads\['L0H1'\] is 'zer'"),
        (lambda m: mh.patching.backups(m, CLEAN, "L0H1", draws=-1), "draws is -1"),
        (lambda m: mh.patching.backups(m, CLEAN, "L0H1", intervention="patch"), "takes values from the source run"),
        (lambda m: mh.patching.backups(m, CLEAN, "L0H1", among="L0H1"), "heads that given ablates already"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(small, call, message):
    with pytest.raises(ValueError, match=message):
        call(small)


def test_backups_are_first_where_one_head_at_a_time_finds_none():
    made = mh.testing.behaving_model()
    pairs = made.pairs()
    some = mh.PromptPairs(*(getattr(pairs, side)[:8] for side in ("clean", "corrupted", "answer", "wrong")))
    of = {name: {head for head, it in made.heads.items() if it.name == name} for name in ("primary", "backup")}
    found = mh.patching.backups(made.model, some, [*of["primary"]], draws=1)
    assert set(found.heads(2)) == of["backup"]
    alone = found.dataset["alone"].mean("prompt").values
    assert all(alone[head.layer, head.head] < np.nanquantile(alone, 0.75) for head in of["backup"])
