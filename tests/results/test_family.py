"""p values of a family of heads: a plain loop over sign patterns, rounding, missing values and files."""

from __future__ import annotations

import itertools
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from mechheads.results.dataset import of_means
from mechheads.results.scores import HeadScores
from mechheads.results.stats import family_p, rounding_of, sign_flip_p

METADATA: dict[str, Any] = {"name": "effect", "unit": "logits", "kind": "activation_patch"}


def t_of(values):
    """|mean| / (sd / sqrt(n)); infinite if all values are equal."""
    error = np.std(values, ddof=1) / sqrt(len(values))
    return abs(np.mean(values)) / error if error > 1e-12 * np.abs(values).max() else inf


def loop_family(rows, strength, patterns):
    """Step-down max-T, row by row: the largest statistic among a row and all weaker ones, pattern by pattern."""
    seen = [strength(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: -seen[i])
    p, least = {}, 0.0
    for place, row in enumerate(order):
        family = order[place:]
        reached = 0
        for signs in patterns:
            largest = max(strength(np.array(signs) * rows[i]) for i in family)
            reached += largest >= seen[row] * (1 - 1e-9)
        least = p[row] = max(least, reached / len(patterns))
    return np.array([p[i] for i in range(len(rows))])


def test_family_p_equals_step_down_max_t_in_a_loop():
    rng = np.random.default_rng(1)
    rows = rng.normal(0.0, 1, size=(7, 6)) + rng.normal(size=6)
    rows[0] += 2.0
    rows[3] = rng.normal(1.5, 0.3, size=6)
    patterns = list(itertools.product([1, -1], repeat=6))
    expected = loop_family(rows, t_of, patterns)
    assert len(set(expected.tolist())) > 3 and expected.min() < 0.1
    assert family_p(rows) == pytest.approx(expected)
    assert family_p(rows + 0.5, null=0.5) == pytest.approx(expected)


def test_clusters_are_flipped_whole_and_missing_prompts_leave_the_others():
    """A cluster counts by its sum; rows compare by |sum| / root of the sum of squares, which orders as t does."""
    rng = np.random.default_rng(2)
    rows = rng.normal(0.6, 1, size=(5, 9))
    rows[2, 3:6] = np.nan
    rows[4, 0] = np.nan
    labels = list("aabbbcdde")
    sums = np.array([[np.nansum(row[[c == label for c in labels]]) for label in "abcde"] for row in rows])
    patterns = list(itertools.product([1, -1], repeat=5))
    expected = loop_family(sums, lambda row: abs(row.sum()) / sqrt((row**2).sum()), patterns)
    assert family_p(rows, labels) == pytest.approx(expected)


def test_drawn_patterns_are_the_same_for_all_rows_and_in_all_parts():
    rng = np.random.default_rng(3)
    rows = rng.normal(0.1, 1, size=(150, 20)) + rng.normal(size=20)
    signs = (1.0 - 2.0 * np.random.default_rng(5).integers(0, 2, size=(20, 9999), dtype=np.int8)).T
    drawn = np.abs(signs @ (rows / np.sqrt((rows**2).sum(1, keepdims=True))).T)
    seen = np.abs(rows.sum(1)) / np.sqrt((rows**2).sum(1))
    order = np.argsort(-seen)
    largest = np.maximum.accumulate(drawn[:, order][:, ::-1], axis=1)[:, ::-1]
    expected = np.empty(150)
    expected[order] = np.maximum.accumulate((1 + (largest >= seen[order] - 1e-9).sum(0)) / 10_000)
    assert family_p(rows, seed=5) == pytest.approx(expected)


def test_thirteen_clusters_are_exact_and_fourteen_are_not():
    rows = np.random.default_rng(0).normal(size=(1, 14))
    rows[0, :13] = np.linspace(1, 2, 13)
    assert family_p(rows[:, :13]) == pytest.approx(2 / 2**13)
    assert family_p(np.abs(rows), n=99) == pytest.approx(0.01)


@pytest.mark.parametrize("n_clusters", [6, 20])
def test_a_family_of_one_has_its_own_p_and_no_row_of_a_family_a_smaller_one(n_clusters):
    rng = np.random.default_rng(n_clusters)
    rows = rng.normal(0.5, 1, size=(12, 2 * n_clusters))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    cluster = np.resize(np.arange(n_clusters), 2 * n_clusters)
    alone = sign_flip_p(rows, cluster, seed=1)
    assert [float(family_p(row, cluster, seed=1)) for row in rows] == pytest.approx(alone.tolist())
    assert (family_p(rows, cluster, seed=1) >= alone - 1e-12).all()


@pytest.mark.filterwarnings("error")
def test_equal_values_tie_with_all_flipped_and_zeros_are_not_different_from_0():
    rows = np.array([[3.0] * 8, [0.0] * 8, [1e-30] * 8, [1.0, -2.0] * 4])
    assert family_p(rows) == pytest.approx(np.array([2 / 2**8, 1.0, 2 / 2**8, float(sign_flip_p(rows[3]))]))
    # signs that alternate are as far out as equal ones in two further patterns
    assert family_p(np.array([[3.0] * 8, [1.0, -1.0] * 4])) == pytest.approx(np.array([4 / 2**8, 1.0]))


def test_values_at_the_level_of_rounding_are_0():
    values = np.zeros((1, 4, 8))
    values[0, 0] = [4.0, 5.0, 4.5, 4.2, 4.8, 5.1, 4.4, 4.9]
    values[0, 1] = 1e-7
    values[0, 2] = [1e-7, 1e-9] * 4
    values[0, 3] = 1e-4
    scores = HeadScores.from_values(values, **METADATA)
    assert rounding_of(values) == pytest.approx(4.65 * 2**-20)
    for name in ("p_value", "p_family"):
        assert scores.dataset[name].values == pytest.approx(np.array([[2 / 2**8, 1.0, 1.0, 2 / 2**8]]))
    exact = HeadScores(of_means(values, None, METADATA, null=0.0, bounds=None, rounding=0.0))
    assert exact.dataset["p_family"].values == pytest.approx(np.array([[2 / 2**8] * 4]))
    # a difference of two metrics of 1000 cannot be known to 1e-4, whatever else was measured
    rounding = rounding_of(values[:, 3:], np.full(8, 1e3))
    coarse = HeadScores(of_means(values[:, 3:], None, METADATA, null=0.0, bounds=None, rounding=rounding))
    assert coarse.dataset["p_family"].values == pytest.approx(np.array([[1.0]]))
    difference = coarse - coarse * 0.5
    assert difference.dataset["p_family"].values == pytest.approx(np.array([[1.0]]))
    assert (exact * 2).dataset["p_family"].values == pytest.approx(exact.dataset["p_family"].values)


def test_scores_carry_the_family_of_all_heads_and_labels_everywhere(tmp_path):
    values = np.random.default_rng(0).normal(0.5, 1, size=(2, 2, 3, 8))
    metadata = METADATA | {"extra": {"pos": [0, 1, 2]}}
    scores = HeadScores(of_means(values, None, metadata, null=0.1, bounds=None, seed=3))
    expected = family_p(values, null=0.1, seed=3)
    np.testing.assert_array_equal(scores.dataset["p_family"].values, expected)
    assert scores.to_dataframe()["p_family"].to_numpy() == pytest.approx(expected.ravel())
    one = scores.select(pos=1)
    np.testing.assert_array_equal(one.dataset["p_family"].values, expected[..., 1])
    assert one["L1H0"]["p_family"] == pytest.approx(expected[1, 0, 1])
    assert one.top(1)["p_family"].item() in expected[..., 1]
    again = HeadScores.load(scores.save(tmp_path / "a.nc"))
    np.testing.assert_array_equal(again.dataset["p_family"].values, expected)
    summed = (scores + scores).dataset["p_family"].values
    assert summed == pytest.approx(family_p(2 * values, null=0.2, seed=3))
    untested = HeadScores.from_values(values[:, :, 0], **(METADATA | {"kind": "ships"}))
    assert np.isnan(untested.dataset["p_family"].values).all()
