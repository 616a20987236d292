"""Roles: the formulas, the shares over seeds, and that a fit finds what was put into a model by hand."""

from __future__ import annotations

import numpy as np
import pytest

import mechheads as mh
from mechheads.gating import ROLES, FitSettings, Gates, Roles, Task, fit_gates, head_roles
from support import tiny as tiny_models
from support.gated_micro import CAPITALS, DEAD, HURTS, NEEDED, capitals
from support.made_gates import made_gates

# What was put in is found


@pytest.fixture(scope="module")
def fitted(micro: mh.Model) -> Gates:
    return fit_gates(micro, capitals(), seeds=10, updates=150, fit=FitSettings(lr=0.2))


@pytest.fixture(scope="module")
def found(fitted: Gates) -> Roles:
    return head_roles(fitted)


@pytest.mark.slow
def test_needed_hurting_and_dead_heads_are_told_apart_for_every_seed(found: Roles) -> None:
    values = {role: found[role].dataset["values"].values for role in ROLES}
    assert values["facilitation"].shape == (2, 4, 10)
    assert (values["facilitation"][NEEDED] > 0.9).all()
    assert (values["interference"][HURTS] > 0.9).all()
    for head in DEAD:
        assert (values["irrelevance"][head] > 0.9).all()
    for role, of in (("facilitation", [NEEDED]), ("interference", [HURTS]), ("irrelevance", DEAD)):
        others = np.ones((2, 4), bool)
        for head in of:
            others[head] = False
        assert (values[role][others] < 0.1).all(), role


@pytest.mark.slow
def test_on_random_targets_no_head_facilitates_in_all_seeds(micro: mh.Model) -> None:
    rng = np.random.default_rng(0)
    words = [f" {word}" for word in tiny_models.WORDS.split()]
    prompts = [f" the{country} is" for country in CAPITALS] * 6
    task = Task(prompts, list(rng.choice(words, len(prompts))), name="random")
    roles = head_roles(fit_gates(micro, task, seeds=10, updates=80, fit=FitSettings(lr=0.3)))
    assert roles.shares().set_index("role").loc["facilitation", "always"] == 0
    assert roles["facilitation"].scores.max() < 0.5


def test_swapped_signs_would_be_seen(fitted: Gates) -> None:
    """From one start, keep ends above drop everywhere, and a dead head goes where it is pulled."""
    assert (fitted["keep"] >= fitted["drop"]).all()
    for head in DEAD:
        assert (fitted["keep"][:, *head] > 0.95).all() and (fitted["drop"][:, *head] < 0.05).all()


def test_clipped_on_both_sides_a_dead_head_that_starts_shut_is_taken_for_one_that_hurts(
    micro: mh.Model, found: Roles
) -> None:
    """Seed 0 begins with L0H3 at 0.017, a logit of -4.1, where the paper's regulariser has no gradient."""
    both = fit_gates(micro, capitals(), seeds=1, updates=(1, 40, 40), fit=FitSettings(clip_side="both"))
    assert head_roles(both)["interference"]["L0H3"]["score"] > 0.9
    assert found["interference"]["L0H3"]["score"] < 0.1


# The formulas


def test_roles_follow_from_the_two_fits() -> None:
    keep = np.array([[[0.9, 0.1], [0.8, 0.3]], [[0.7, 0.2], [1.0, 0.0]]])
    drop = np.array([[[0.2, 0.0], [0.7, 0.3]], [[0.4, 0.1], [1.0, 0.0]]])
    roles = head_roles(made_gates(keep, drop))
    by_hand = {"facilitation": drop, "interference": 1 - keep, "irrelevance": keep * (1 - drop)}
    for role, values in by_hand.items():
        scores = roles[role]
        np.testing.assert_allclose(scores.dataset["values"].values, np.moveaxis(values, 0, -1))
        np.testing.assert_allclose(scores.scores, values.mean(0))
        assert scores.kind == "roles" and scores.unit == "gate" and "2505.13737" in scores.citation()
        assert scores.dataset["p_value"].isnull().all()  # a gate is never below 0: there is nothing to test
        assert scores.dataset["ci_low"].isnull().all()  # two seeds have no interval, but a range
        np.testing.assert_allclose(scores.dataset["range_low"], values.min(0))
        np.testing.assert_allclose(scores.dataset["range_high"], values.max(0))
    assert roles["irrelevance"]["L0H0"]["score"] == pytest.approx((0.9 * 0.8 + 0.7 * 0.6) / 2)


def test_always_and_any_over_seeds() -> None:
    drop = np.array([[[0.6, 0.6, 0.1, 0.5]], [[0.7, 0.2, 0.2, 0.5]]])
    keep = np.maximum(drop, 0.6)
    roles = head_roles(made_gates(keep, drop))
    wanted = {0.5: (0.5, 0.75, 0.625), 0.55: (0.25, 0.5, 0.375), 0.65: (0, 0.25, 0.125)}
    for threshold, shares in wanted.items():
        found = roles.shares(threshold).set_index("role").loc["facilitation", ["always", "any", "mean"]]
        assert found.tolist() == list(shares)
    for threshold in (-0.1, 1.1):
        with pytest.raises(ValueError, match="threshold is"):
            roles.shares(threshold)
