"""Intervals, sign flips and false discovery rate, against plain loops and results by hand."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from scipy.stats import binomtest, false_discovery_control, t as student_t

from mechheads.results.stats import (
    carried_by,
    cluster_range,
    clustered_interval,
    family_p,
    mean_over_prompts,
    q_values,
    share_interval,
    sign_flip_p,
)

CLUSTERS = ["a", "a", "b", "b", "b", "c", "d", "d", "e"]


def loop_interval(values, cluster, level):
    """One row, with matrices in place of closed forms: what the docstring says, cluster by cluster."""
    of = {}
    for value, label in zip(values, cluster, strict=True):
        if not np.isnan(value):
            of.setdefault(label, []).append(value)
    mean = np.mean([v for members in of.values() for v in members])
    share = np.array([len(members) for members in of.values()]) / sum(map(len, of.values()))
    off = [w * (np.mean(members) - mean) / np.sqrt(1 - w) for w, members in zip(share, of.values(), strict=True)]
    error = np.sqrt(sum(u**2 for u in off))
    # the squared error is m' A m; the clusters' means m have variances 1 / share where prompts are independent
    centre = np.eye(len(share)) - share
    form = centre.T @ np.diag(share**2 / (1 - share)) @ centre @ np.diag(1 / share)
    q = student_t.ppf((1 + level) / 2, np.trace(form) ** 2 / np.trace(form @ form))
    longer = sum(u**3 for u in off) / error**3 * (2 * q**2 + 1) / 6
    return mean - error * (q + max(-longer, 0)), mean + error * (q + max(longer, 0))


def test_interval_equals_a_plain_loop_also_with_missing_values():
    values = np.random.default_rng(1).normal(size=(2, 3, 9))
    values[0, 1, 2:5] = np.nan
    values[1, 2, 0] = np.nan
    low, high = clustered_interval(values, CLUSTERS, level=0.9)
    assert low.shape == high.shape == (2, 3)
    for at in np.ndindex(2, 3):
        assert (low[at], high[at]) == pytest.approx(loop_interval(values[at], CLUSTERS, 0.9))


def test_two_clusters_have_a_range_of_their_means_and_nothing_else_has():
    rows = np.array([[1.0, 2.0, 6.0, np.nan], [1.0, 2.0, 6.0, 7.0], [1.0, 2.0, np.nan, np.nan], [1.0, 2.0, np.inf, 1]])
    low, high = cluster_range(rows, ["a", "a", "b", "c"])
    assert np.array_equal(low, [1.5, np.nan, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(high, [6.0, np.nan, np.nan, np.nan], equal_nan=True)
    assert np.isnan(clustered_interval(rows[[0, 2]], ["a", "a", "b", "c"])).all()


def test_sign_flips_by_hand():
    # sums over the 4 sign patterns of (3, 1): 4, 2, -2, -4; two are as far out as 4
    assert sign_flip_p(np.array([3.0, 1.0])) == 0.5
    # deviations from 1 are (1, 2, 4): |sum| 7 is reached by +++ and --- of 8
    assert sign_flip_p(np.array([2.0, 3.0, 5.0]), null=1.0) == 0.25
    # clusters a: 1 + 2 = 3, b: 1 flip together, so (3, 1) again
    assert sign_flip_p(np.array([1.0, 2.0, 1.0]), ["a", "a", "b"]) == 0.5
    # (2, -1): sums 1, 3, -3, -1, all at least 1 from 0
    assert sign_flip_p(np.array([2.0, -1.0])) == 1.0
    # exactly at the null, and a single cluster, prove nothing
    assert sign_flip_p(np.array([0.0, 0.0])) == 1.0
    assert sign_flip_p(np.array([5.0, 6.0]), ["a", "a"]) == 1.0


def test_exact_sign_flips_equal_every_pattern_counted_in_a_loop():
    values = np.random.default_rng(7).normal(0.5, 1, size=(6, 9))
    values[2, 3] = np.nan
    p = sign_flip_p(values, CLUSTERS)
    for row, found in zip(values, p, strict=True):
        sums = [
            np.nansum([v for v, c in zip(row, CLUSTERS, strict=True) if c == label])
            for label in dict.fromkeys(CLUSTERS)
        ]
        patterns = [
            abs(np.dot(signs, sums)) >= abs(sum(sums)) - 1e-12 for signs in itertools.product([1, -1], repeat=5)
        ]
        assert found == pytest.approx(np.mean(patterns))


def p_of_one_matrix(values, cluster, null, seed, n):
    """The p values from all signs in one matrix [cluster, pattern] and a matrix of who is in which cluster."""
    labels = list(dict.fromkeys(cluster))
    member = np.array([[label == of for of in labels] for label in cluster], dtype=float)
    totals = np.nan_to_num(values - null) @ member
    signs = 1.0 - 2.0 * np.random.default_rng(seed).integers(0, 2, size=(len(labels), n), dtype=np.int8)
    rounding = 1e-12 * np.abs(totals).sum(1, keepdims=True)
    return (1 + (np.abs(totals @ signs) >= np.abs(totals.sum(1, keepdims=True)) - rounding).sum(1)) / (1 + n)


@pytest.mark.parametrize(("n_clusters", "n"), [(14, 9999), (903, 99), (903, 1023)])
def test_signs_in_blocks_are_the_signs_of_one_matrix(n_clusters, n):
    """903 clusters are more than are kept, and 230 rows more than are flipped at once."""
    rng = np.random.default_rng(n_clusters)
    values = rng.normal(0.02, 1, size=(230, 2 * n_clusters))
    values[rng.random(values.shape) < 0.01] = np.nan
    cluster = rng.permutation(np.repeat(np.arange(n_clusters), 2)).tolist()
    expected = p_of_one_matrix(values, cluster, 0.01, 5, n)
    assert sign_flip_p(values, cluster, null=0.01, seed=5, n=n).tolist() == expected.tolist()


def peak_bytes(call, *args):
    """NumPy tells tracemalloc of its arrays."""
    tracemalloc.start()
    try:
        call(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_statistics_take_less_than_40_mb_however_many_prompts_there_are():
    cluster = [0] * 3000 + [*range(3000)]
    values = np.random.default_rng(0).normal(size=(2, 6000))
    assert peak_bytes(mean_over_prompts, values) < 40e6
    for statistic in (clustered_interval, cluster_range, sign_flip_p, family_p):
        assert peak_bytes(statistic, values, cluster) < 40e6


@pytest.mark.filterwarnings("error")
def test_means_of_infinite_values_are_infinite_or_nothing_and_leave_nan_out():
    rows = np.array([[1.0, np.inf, 2.0], [-np.inf, np.nan, 1.0], [np.inf, -np.inf, 1.0]])
    means = mean_over_prompts(np.concatenate([rows, [[1.0, np.nan, 3.0], [np.nan] * 3]]))
    assert means == pytest.approx(np.array([np.inf, -np.inf, np.nan, 2.0, np.nan]), nan_ok=True)
    assert np.isnan(clustered_interval(rows)).all()


def test_sign_flips_give_nan_where_nothing_was_measured():
    p = sign_flip_p(np.array([[np.nan, np.nan], [1.0, np.nan], [np.inf, 1.0]]))
    assert np.isnan(p[[0, 2]]).all()
    assert p[1] == 1.0


def loop_carried(row, cluster):
    """The prompt whose cluster halves the mean of the others or turns its sign, and does so most."""
    labels = list(dict.fromkeys(c for v, c in zip(row, cluster, strict=True) if not np.isnan(v)))
    mean, found, least = np.nanmean(row), -1, 0.5
    for label in labels if len(labels) > 2 and mean != 0 else ():
        left = np.nanmean([v for v, c in zip(row, cluster, strict=True) if c != label]) / mean
        if left <= least:
            found, least = cluster.index(label), left
    return found


def test_a_prompt_that_carries_a_mean_is_found_as_in_a_loop():
    rng = np.random.default_rng(0)
    rows = rng.lognormal(0, 1.5, size=(60, 9)) * rng.choice([-1, 1], size=(60, 1), p=[0.3, 0.7])
    rows[::3] -= rows[::3].mean(1, keepdims=True) * 0.8
    rows[rng.random(rows.shape) < 0.1] = np.nan
    for cluster in (list("abcdefghi"), CLUSTERS):
        expected = [loop_carried(row, cluster) for row in rows]
        assert 5 < sum(each >= 0 for each in expected) < 55
        assert carried_by(rows, cluster).tolist() == expected


def test_no_prompt_carries_two_clusters_zeros_or_equal_values():
    rows = np.array([[1.0, 9.0, np.nan, np.nan], [0.0] * 4, [2.0] * 4, [np.nan] * 4, [1.0, np.inf, 1.0, 1.0]])
    assert carried_by(rows).tolist() == [-1] * 5
    assert carried_by(np.array([0.0, 0.0, 1e50, 0.0])) == 2


def test_q_values_by_hand():
    # sorted p * m / rank: .01*4/1, .02*4/2, .03*4/3, .5*4/4; then the running minimum from the right
    p = np.array([[0.5, 0.01], [0.03, 0.02]])
    assert q_values(p) == pytest.approx(np.array([[0.5, 0.04], [0.04, 0.04]]))
    with_gap = np.array([0.01, np.nan, 0.2])
    assert q_values(with_gap) == pytest.approx(np.array([0.02, np.nan, 0.2]), nan_ok=True)
    assert np.isnan(q_values(np.array([np.nan]))).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_q_is_at_least_p_and_keeps_its_order(p):
    p = np.array(p)
    q = q_values(p)
    np.testing.assert_allclose(q, false_discovery_control(p, method="bh"), rtol=1e-12)
    assert (q >= p - 1e-15).all()
    assert (q <= 1).all()
    assert (np.diff(q[np.argsort(p, kind="stable")]) >= -1e-15).all()


@settings(max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=12), st.floats(0.1, 10), st.floats(-10, 10))
@example([0.0, 0.0, 0.0, 4e-145], 1.0, 0.0)  # the cube of the error is 0 in floating point
def test_intervals_and_p_follow_a_change_of_unit(values, scale, shift):
    values = np.array(values)
    low, high = clustered_interval(values)
    moved_low, moved_high = clustered_interval(values * scale + shift)
    assert moved_low == pytest.approx(low * scale + shift, abs=1e-8)
    assert moved_high == pytest.approx(high * scale + shift, abs=1e-8)
    assert low <= high
    assert sign_flip_p(-values) == sign_flip_p(values)


@pytest.mark.parametrize(("hits", "n"), [(0, 4), (4, 4), (0, 38), (25, 38), (1, 200)])
def test_interval_of_a_share_is_wilsons(hits, n):
    expected = binomtest(hits, n).proportion_ci(0.95, method="wilson")
    low, high = share_interval(np.array([hits / n]), np.array([n]))
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high))
    assert low[0] <= hits / n <= high[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: clustered_interval(v, ["a"]), "cluster has 1 labels for 3 prompts"),
        (lambda v: sign_flip_p(v, ["a"]), "cluster has 1 labels for 3 prompts"),
        (lambda v: sign_flip_p(v, n=0), "n is 0; it must be at least 1"),
        (lambda v: clustered_interval(v, level=95.0), "level is 95.0; it must be between 0 and 1"),
        (lambda v: clustered_interval(v[:0]), "at least one prompt"),
        (lambda v: q_values(v), "p contains values outside 0..1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.array([1.0, 2.0, 3.0]))
