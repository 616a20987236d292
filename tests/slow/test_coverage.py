"""How often intervals hold the true mean and tests err, in simulated experiments: what docs/uncertainty.md says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from jaxtyping import Float

from mechheads.results.stats import cluster_range, clustered_interval, family_p, sign_flip_p

DRAWS, HEADS, EFFECT, FLIPS = 4000, 270, 2.0, 499
Draw = Callable[[np.random.Generator, tuple[int, ...]], Float[np.ndarray, "..."]]
EFFECTS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "rare and large": lambda rng, shape: np.where(rng.random(shape) < 0.05, 19.0, -1.0),
    "t3": lambda rng, shape: rng.standard_t(3, size=shape) / 3**0.5,
    "lognormal": lambda rng, shape: (rng.lognormal(size=shape) - np.e**0.5) / ((np.e - 1) * np.e) ** 0.5,
    "one prompt in ten": lambda rng, shape: np.where(rng.random(shape) < 0.1, 3.0, -1 / 3),
}
"""Distributions of effects, all with mean 0; "rare and large" is 19 with a probability of 5%, and otherwise -1."""
SHARED = {"all": (1.0, 0.0), "half": (0.5**0.5, 0.5**0.5), "nothing": (0.0, 1.0)}
"""How much the prompts of a cluster share: the factor of the cluster's effect, and of each prompt's effect."""


def holds(ends: tuple[np.ndarray, np.ndarray]) -> float:
    """The share of intervals that hold 0."""
    return float(((ends[0] <= 0) & (ends[1] >= 0)).mean())


@pytest.mark.parametrize(
    ("effects", "clusters", "coverage"),
    [
        *(("normal", n, share) for n, share in ((3, 0.96), (8, 0.96), (30, 0.956))),
        *(("exponential", n, share) for n, share in ((3, 0.906), (8, 0.926), (30, 0.953))),
        *(("t3", n, share) for n, share in ((3, 0.971), (8, 0.964))),
        *(("lognormal", n, share) for n, share in ((3, 0.873), (8, 0.876), (30, 0.92))),
        *(("one prompt in ten", n, share) for n, share in ((3, 0.278), (8, 0.559), (30, 0.953))),
    ],
)
def test_intervals_over_equal_clusters_hold_the_mean_as_often_as_said(effects: str, clusters: int, coverage: float):
    """Beside 20,000 draws: one standard error of the difference is 0.5% at 90%."""
    values = EFFECTS[effects](np.random.default_rng(clusters), (DRAWS, clusters))
    assert holds(clustered_interval(values)) == pytest.approx(coverage, abs=0.02)


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize(("effects", "least"), [("normal", 0.935), ("exponential", 0.89)])
def test_intervals_over_clusters_of_one_to_four_prompts_hold_no_less(effects: str, least: float, shared: str):
    of_cluster, of_prompt = SHARED[shared]
    for clusters in (3, 6, 12):
        rng = np.random.default_rng(clusters)
        label = np.repeat(np.arange(clusters), np.resize((1, 2, 3, 4), clusters))
        common = EFFECTS[effects](rng, (DRAWS, clusters))[:, label]
        values = of_cluster * common + of_prompt * EFFECTS[effects](rng, (DRAWS, len(label)))
        assert least <= holds(clustered_interval(values, label)) <= 0.985


def test_the_range_of_two_clusters_holds_the_mean_in_half_of_all_cases():
    values = EFFECTS["normal"](np.random.default_rng(2), (DRAWS, 2))
    assert holds(cluster_range(values)) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize(("effects", "share"), [("normal", 10 / 256), ("rare and large", 0.95**8)])
def test_sign_flips_take_asymmetry_for_an_effect(effects: str, share: float):
    """8 clusters of a rare large effect all have one sign with a chance of 0.95 ** 8."""
    values = EFFECTS[effects](np.random.default_rng(8), (DRAWS, 8))
    assert float((sign_flip_p(values) <= 0.05).mean()) == pytest.approx(share, abs=0.03)


def families(effects: str, clusters: int, trials: int, shared: bool) -> tuple[float, float]:
    """How often a head that does nothing is found, and how often the one that has an effect."""
    draw, rng = EFFECTS[effects], np.random.default_rng(clusters)
    found = []
    for _ in range(trials):
        values = draw(rng, (HEADS, clusters))
        if shared:
            values = (values + draw(rng, (1, clusters))) / 2**0.5
        values[0] += EFFECT
        p = family_p(values, n=FLIPS)
        found.append((bool((p[1:] <= 0.05).any()), bool(p[0] <= 0.05)))
    any_false, power = np.mean(found, axis=0)
    return float(any_false), float(power)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("effects", ["normal", "t3"])
def test_a_family_p_holds_its_level_for_symmetric_effects(effects: str, shared: bool):
    any_false, power = zip(*(families(effects, n, 60, shared) for n in (6, 10, 16)), strict=True)
    assert np.mean(any_false) < 0.09
    assert power[-1] > 0.9


def test_a_family_p_errs_for_skewed_effects_of_independent_heads():
    assert families("lognormal", 10, 30, shared=False)[0] > 0.5
