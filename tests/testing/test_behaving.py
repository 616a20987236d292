"""Models with planted attention: they attend as they should, and a profile finds what was planted and nothing else."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import scipy.stats

import mechheads as mh
from mechheads.behaviour.head_profile import NAMES, PROFILED
from mechheads.testing.behaving import BehavingModel, Behaviour, behaving_model

pytestmark = pytest.mark.transformerlens


def profile_of(made: BehavingModel) -> mh.behaviour.HeadProfile:
    return mh.profile_heads(made.model, made.texts(), window=100, progress=False)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_noise_every_head_attends_where_its_behaviour_says(seed: int) -> None:
    made = behaving_model(seed=seed, noise=0)
    assert sorted(made.heads.values()) == sorted(2 * get_args(Behaviour))
    row = made.texts(1, 60)[0]
    marks = {made.model.tokenizer.vocab[f"▁{mark}"] for mark in ".,:;?!"}
    pattern = made.model.cache([row], sites=("pattern",)).pattern
    for head, behaviour in made.heads.items():
        A = pattern[head.layer, head.head][0].numpy()
        share = []
        for q in range(2, 60):
            keys = {
                "previous-token": [q - 1],
                "self": [q],
                "sink": [0],
                "duplicate-token": [k for k in range(1, q) if row[k] == row[q]],
                "induction": [k for k in range(1, q) if row[k - 1] == row[q]],
                "delimiter": [k for k in range(1, q + 1) if row[k] in marks],
            }[behaviour]
            share += [A[q, keys].sum()] if keys else []
        assert len(share) > 10 and np.mean(share) > 0.75, (head, behaviour)


@pytest.mark.slow
def test_a_profile_ranks_planted_heads_first_and_names_them() -> None:
    for seed in range(3):
        made = behaving_model(seed=seed)
        profile = profile_of(made)
        for behaviour in get_args(Behaviour):
            excess = profile.dataset["excess"].values[..., PROFILED.index(_column(behaviour))]
            planted = np.zeros(excess.shape, dtype=bool)
            for head, each in made.heads.items():
                planted[head.layer, head.head] = each == behaviour
            ranks = scipy.stats.rankdata(excess).reshape(excess.shape)
            lower = ranks[planted].sum() - planted.sum() * (planted.sum() + 1) / 2
            assert lower / (planted.sum() * (~planted).sum()) > 0.98, (seed, behaviour)  # the area under the ROC curve
            assert set(profile.named(behaviour)) == {head for head, each in made.heads.items() if each == behaviour}
        positional = {head for head, each in made.heads.items() if each == "previous-token"}
        assert set(profile.named("positional")) <= positional


@pytest.mark.slow
def test_where_nothing_is_planted_no_head_gets_a_name() -> None:
    for seed in range(3):
        profile = profile_of(behaving_model(seed=seed, plant={}))
        assert not profile.dataset["named"].values.any(), seed


def _column(name: str) -> str:
    return next(column for column, each in NAMES.items() if each == name)


def test_only_what_is_planted_depends_on_the_plant() -> None:
    plant: dict[str, Behaviour] = {"L0H1": "previous-token", "L1H2": "induction"}
    one, other = (behaving_model(plant=each) for each in (plant, plant | {"L3H3": "sink"}))
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        for layer in range(4):
            same = (getattr(one.model, name)[layer] == getattr(other.model, name)[layer]).flatten(1).all(1)
            assert [head for head in range(8) if not same[head]] == ([3] if layer == 3 and name in "W_Q W_K" else [])
    assert repr(one) == "<BehavingModel, seed 0: L0H1=previous-token L1H2=induction>"
    assert repr(behaving_model(plant={})) == "<BehavingModel, seed 0: nothing planted>"
    assert behaving_model(seed=3).heads != behaving_model(seed=4).heads


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": -1}, "noise is -1; it must be a share of the planted weights, 0 or more"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"plant": {"L0H1": "name mover"}}, "plant\\['L0H1'\\] is 'name mover'"),
        ({"plant": {"L9H1": "sink"}}, "L9H1"),
        ({"plant": {"L0H1": "sink", (0, 1): "self"}}, "plant names L0H1 twice"),
        ({"plant": {"L1H1": "induction"}}, "needs a previous-token head in layer 0"),
        ({"n_layers": 1}, "the default plant needs 14 heads in 2 or more layers"),
    ],
)
def test_what_cannot_be_planted_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        behaving_model(**options)
