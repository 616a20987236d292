"""Models with planted attention: they attend as they should, and a profile finds what was planted and nothing else."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.behaviour.head_profile import NAMES, PROFILED
from mechheads.heads import HeadId
from mechheads.testing.behaving import BehavingModel, behaving_model
from mechheads.testing.behaving_weights import Behaviour
from support import oracles

ATTENTION = ("previous-token", "self", "sink", "duplicate-token", "induction", "delimiter")
SMALL: dict[str, Behaviour] = {
    "L0H1": "previous-token",
    "L1H0": "primary",
    "L1H3": "negative",
    "L2H2": "backup",
    "L3H0": "backup",
}


def profile_of(made: BehavingModel) -> mh.behaviour.HeadProfile:
    return mh.profile_heads(made.model, made.texts(), window=100, progress=False)


@pytest.mark.parametrize("seed", [0, 1])
def test_without_noise_every_head_attends_where_its_behaviour_says(seed: int) -> None:
    made = behaving_model(seed=seed, noise=0)
    assert sorted([*made.heads.values(), "primary"]) == sorted(2 * get_args(Behaviour))
    row = made.texts(1, 60)[0]
    marks = {made.model.tokenizer.vocab[f"▁{mark}"] for mark in ".,:;?!"}
    pattern = made.model.cache([row], sites=("pattern",)).pattern
    for head, behaviour in made.attends.items():
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


@pytest.mark.release
def test_a_profile_ranks_planted_heads_first_and_names_them() -> None:
    for seed in range(2):
        made = behaving_model(seed=seed)
        profile = profile_of(made)
        for behaviour in ATTENTION:
            excess = profile.dataset["excess"].values[..., PROFILED.index(_column(behaviour))]
            truth = {head for head, each in made.attends.items() if each == behaviour}
            assert area(excess, made, truth) > 0.98, (seed, behaviour)
            assert set(profile.named(behaviour)) == truth
        positional = {head for head, each in made.heads.items() if each == "previous-token"}
        assert set(profile.named("positional")) <= positional
        assert area(-profile.dataset["copying"].values, made, of(made, "negative")) == 1


def of(made: BehavingModel, *behaviours: Behaviour) -> set[HeadId]:
    return {head for head, each in made.heads.items() if each in behaviours}


def area(score: np.ndarray, made: BehavingModel, truth: set[HeadId]) -> float:
    """The area under the ROC curve of some heads among all others."""
    every = [HeadId(layer, head) for layer, head in np.ndindex(score.shape)]
    there = np.array([score[head.layer, head.head] for head in every if head in truth])
    other = np.array([score[head.layer, head.head] for head in every if head not in truth])
    assert len(there) == len(truth) > 0
    return float((there[:, None] > other).mean())


@pytest.mark.release
def test_where_nothing_is_planted_no_head_gets_a_name() -> None:
    for seed in range(2):
        made = behaving_model(seed=seed, plant={})
        assert not profile_of(made).dataset["named"].values.any(), seed


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:the clean run prefers")
def test_where_nothing_is_planted_nothing_copies_suppresses_or_stands_in() -> None:
    made = behaving_model(seed=1, plant={})
    assert not (mh.behaviour.copying_scores(made.model, progress=False).dataset["q_value"].values <= 0.05).any()
    parts = mh.behaviour.logit_attribution(made.model, made.pairs(), progress=False)
    assert not (parts.dataset["q_value"].values <= 0.05).any()
    assert np.abs(repair_of(made, ablation=mh.Zero())).max() < 0.01


def repair_of(made: BehavingModel, **options: Any) -> np.ndarray:
    found = mh.patching.self_repair(made.model, made.pairs(), **options, progress=False)
    return found.select(effect="repair").dataset["score"].values


def stands_in(made: BehavingModel, primary: HeadId) -> np.ndarray:
    """How much more is lost with each head if the primary head is lost too [layer, head]."""
    shape = (made.model.n_layers, made.model.n_heads)
    every = [HeadId(layer, head) for layer, head in np.ndindex(shape)]
    sets = [{head} for head in every] + [{head, primary} for head in every]
    found = mh.patching.patch_sets(made.model, made.pairs(), sets, direction="noising", progress=False)
    alone, both = found.values.mean(-1).reshape(2, *shape)
    more = alone + alone[primary.layer, primary.head] - both
    more[primary.layer, primary.head] = 0
    return more


@pytest.mark.release
@pytest.mark.filterwarnings("ignore:the clean run prefers")
def test_negative_primary_and_backup_heads_are_found() -> None:
    made = behaving_model(seed=2)
    (primary,) = of(made, "primary")
    eigenvalues = mh.behaviour.copying_scores(made.model, progress=False).dataset
    found = eigenvalues["q_value"].values <= 0.05
    sign = np.sign(eigenvalues["score"].values) * found
    assert area(eigenvalues["score"].values, made, of(made, "primary", "backup")) == 1
    assert area(-eigenvalues["score"].values, made, of(made, "negative")) == 1
    for head in of(made, "primary", "backup", "negative"):
        assert sign[head.layer, head.head] == (-1 if head in of(made, "negative") else 1)
    parts = mh.behaviour.logit_attribution(made.model, made.pairs(), progress=False).dataset["score"].values
    assert area(parts, made, {primary}) == area(-parts, made, of(made, "negative")) == 1
    for options in ({}, {"ablation": mh.Zero()}):
        assert area(repair_of(made, **options), made, {primary}) == 1
    assert area(stands_in(made, primary), made, of(made, "backup")) == 1


@pytest.mark.release
def test_a_backup_head_copies_only_if_the_primary_head_does_not() -> None:
    """Full forward passes, without noise: what each head adds to the logit of the answer."""
    made = behaving_model(noise=0, plant=SMALL)
    pairs = made.pairs(40)
    rows, answers = torch.tensor(pairs.clean), torch.tensor(pairs.answer)

    def logit(*off: tuple[int, int]) -> float:
        def silence(value: torch.Tensor, hook: Any, head: int) -> torch.Tensor:
            value = value.clone()
            value[:, :, head] = 0
            return value

        hooks = [(oracles.name(layer, "z"), functools.partial(silence, head=head)) for layer, head in off]
        return float(oracles.forward(made.model, rows, hooks)[range(len(rows)), -1, answers].mean())

    primary, negative, backups = (1, 0), (1, 3), ((2, 2), (3, 0))
    assert logit(primary) - logit(primary, *backups) == pytest.approx(2 * 1.5, abs=0.3)
    assert logit() - logit(*backups) == pytest.approx(0, abs=0.3)
    assert logit(*backups) - logit(primary, *backups) == pytest.approx(4, abs=0.3)
    assert logit() - logit(negative) == pytest.approx(-1, abs=0.2)


def test_pairs() -> None:
    made = behaving_model(plant=SMALL)
    pairs = made.pairs(20)
    for clean, corrupted, answer, wrong in zip(pairs.clean, pairs.corrupted, pairs.answer, pairs.wrong, strict=True):
        *before, last = clean
        assert before.count(last) == 1 and before[before.index(last) + 1] == answer != wrong
        assert wrong in before and corrupted[:-1] == before and corrupted[-1] not in before
        assert len({*before}) == len(before) == 40 - 1
    assert made.attends == {
        HeadId(0, 1): "previous-token",
        HeadId(1, 0): "induction",
        HeadId(1, 3): "induction",
        HeadId(2, 2): "sink",
        HeadId(3, 0): "sink",
    }


def _column(name: str) -> str:
    return next(column for column, each in NAMES.items() if each == name)


@pytest.mark.release
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
        ({"plant": {"L1H1": "induction"}}, "plant has induction in L1H1, which needs a previous-token head in layer 0"),
        ({"plant": {"L0H1": "previous-token", "L0H2": "negative"}}, "plant has negative in L0H2, which needs"),
        ({"plant": {"L0H1": "previous-token", "L1H2": "backup"}}, "plant has backup in L1H2, which needs a primary"),
        ({"plant": SMALL | {"L1H2": "backup"}}, "plant has backup in L1H2, which needs a primary head in an earlier"),
        ({"n_layers": 2}, "the default plant needs 19 heads in 3 or more layers"),
    ],
)
def test_what_cannot_be_planted_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        behaving_model(**options)
