"""Intervals within bounds: against formulas for single numbers, copies, and how often they hold the mean."""

from __future__ import annotations

from math import exp, inf, log, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t

import mechheads as mh
from mechheads.metrics import METRICS, MetricInfo
from mechheads.results.scores import HeadScores
from mechheads.results.stats import Bounds, bounded_interval, clustered_interval

METADATA: dict[str, Any] = {"name": "effect", "unit": "share", "kind": "demo"}
SHARE, PAIRED, FROM_0 = (0, 1, True), (-1, 1, True), (0, None)


def ends(values, bounds):
    return [float(end) for end in bounded_interval(values, bounds=bounds)]


def held(values, truth, bounds):
    low, high = bounded_interval(values, bounds=bounds)
    return ((low <= truth) & (truth <= high)).mean()


@pytest.mark.parametrize("hits", [0, 1, 5, 8])
def test_a_share_has_wilsons_interval_with_a_t_quantile(hits):
    n, t = 8, student_t.ppf(0.975, 7)
    low, high = bounded_interval(np.repeat([1.0, 0.0], [hits, n - hits]), bounds=SHARE)
    for end in (low, high):  # |share - p| = t sqrt(p (1 - p) / n)
        if 0 < end < 1:
            assert abs(hits / n - end) == pytest.approx(t * sqrt(end * (1 - end) / n))
    assert 0 <= low <= hits / n <= high <= 1
    assert high - low > 0.3


@pytest.mark.parametrize(("yes", "no"), [(0, 0), (8, 0), (3, 1), (1, 4)])
def test_a_difference_of_shares_has_the_interval_of_agresti_and_min(yes, no):
    values = np.repeat([1.0, -1.0, 0.0], [yes, no, 8 - yes - no])
    more, less, n = yes + 0.5, no + 0.5, 10
    reach = student_t.ppf(0.975, 7) / n * sqrt(more + less - (more - less) ** 2 / n)
    expected = [max(-1, (more - less) / n - reach), min(1, (more - less) / n + reach)]
    assert ends(values, PAIRED) == pytest.approx(expected)


def test_what_cannot_be_negative_has_a_jackknife_on_the_log_scale():
    values = np.array([0.2, 0.5, 0.1, 3.0, 0.7, 0.4])
    logs = [log(np.delete(values, i).mean()) for i in range(6)]
    spread = exp(student_t.ppf(0.975, 5) * sqrt(5 / 6 * sum((each - np.mean(logs)) ** 2 for each in logs)))
    low, high = bounded_interval(values, bounds=FROM_0)
    assert low == pytest.approx(values.mean() / spread)
    assert high == pytest.approx(max(values.mean() * spread, clustered_interval(values)[1]))
    assert ends(values + 2, (2, None)) == pytest.approx([low + 2, high + 2])


@pytest.mark.parametrize("bounds", [SHARE, PAIRED, FROM_0])
def test_clusters_of_copies_count_once(bounds):
    rng = np.random.default_rng(0)
    values = (rng.random((4, 8)) < 0.4) * 1.0 if bounds[1] else rng.gamma(1, size=(4, 8))
    once = bounded_interval(values, bounds=bounds)
    copies = bounded_interval(np.repeat(values, 3, axis=1), np.repeat(np.arange(8), 3), bounds=bounds)
    for mine, theirs in zip(once, copies, strict=True):
        assert theirs == pytest.approx(mine)


def test_equal_values_count_by_clusters_and_missing_ones_not_at_all():
    values = np.ones(16)
    low, high = bounded_interval(values, np.repeat(np.arange(8), 2), bounds=SHARE)
    assert [float(low), float(high)] == pytest.approx(ends(values[:8], SHARE))
    assert ends(np.concatenate([values[:8], np.full(3, np.nan)]), SHARE) == pytest.approx(ends(values[:8], SHARE))
    assert np.isnan(bounded_interval(np.ones(2), bounds=SHARE)).all()


@pytest.mark.parametrize("bounds", [SHARE, PAIRED, FROM_0])
def test_fewer_than_six_clusters_are_too_few_for_shares_and_what_has_only_a_lower_end(bounds):
    values = np.array([[1.0, 0, 1, 1, 0, 1], [1, 0, 1, 1, 0, np.nan]])
    low, high = bounded_interval(values, bounds=bounds)
    assert np.isfinite([low[0], high[0]]).all() and np.isnan([low[1], high[1]]).all()
    assert np.isnan(bounded_interval(values[0], [0, 1, 2, 3, 4, 4], bounds=bounds)).all()
    for other in (None, (-2, 2)):
        assert np.isfinite(bounded_interval(values, bounds=other)).all()


@pytest.mark.parametrize(("end", "other"), [(-1.0, 1.0), (1.0, -1.0)])
def test_values_that_all_equal_an_end_have_the_interval_of_a_share_of_the_way_to_the_other(end, other):
    """With a share of 0, Wilson's other end is t^2 / (n + t^2)."""
    t = student_t.ppf(0.975, 7)
    reached = end + (other - end) * t**2 / (8 + t**2)
    assert sorted(ends(np.full(8, end), (-1, 1))) == pytest.approx(sorted([end, reached]))
    assert ends(np.full(8, 0.25), (-1, 1)) == [0.25, 0.25]


@pytest.mark.parametrize("n", [8, 32])
def test_intervals_hold_shares_differences_and_divergences_93_times_in_100(n):
    """One standard error is 0.4%."""
    rng = np.random.default_rng(n)
    for p in (0.05, 0.1, 0.35, 0.5, 0.8, 0.95):
        assert held((rng.random((4000, n)) < p) * 1.0, p, SHARE) > 0.92
    for before, after in ((0.05, 0.95), (0.5, 0.6), (0.9, 0.2), (0.1, 0.1)):
        values = (rng.random((4000, n)) < after) * 1.0 - (rng.random((4000, n)) < before)
        assert held(values, after - before, PAIRED) > 0.92
    for shape in (0.5, 2):
        assert held(rng.gamma(shape, size=(4000, n)), shape, FROM_0) > 0.92


def test_metrics_say_the_bounds_of_their_changes():
    bounds = {name: MetricInfo.of(each).bounds_of_changes() for name, each in METRICS.items()}
    assert bounds == {
        "logit_diff": (-inf, inf, False),
        "log_prob": (-inf, inf, False),
        "accuracy": (-1, 1, True),
        "kl_divergence": (0, inf, False),
    }
    assert MetricInfo.of(METRICS["accuracy"]).bounds_of_changes(-0.5) == (-2, 2, True)
    probability = mh.metric(unit="share", bounds=(0, 1))(mh.log_prob)
    assert MetricInfo.of(probability).bounds_of_changes() == (-1, 1, False)
    with pytest.raises(ValueError, match=r"bounds is \(1, 0\); the first must be below the second"):
        mh.metric(bounds=(1, 0))


def test_scores_keep_within_the_bounds_that_they_are_given_or_their_kind_has(tmp_path):
    values = np.ones((1, 2, 8))
    values[0, 0] = 0.0
    scores = HeadScores.from_values(values, bounds=SHARE, **METADATA)
    expected = bounded_interval(values, bounds=SHARE)
    for name, ends in zip(("ci_low", "ci_high"), expected, strict=True):
        assert scores.dataset[name].values == pytest.approx(ends)
    again = HeadScores.load(scores.save(tmp_path / "a.nc"))
    paired = again - scores
    assert paired["L0H0"]["ci_high"] == pytest.approx(float(bounded_interval(np.zeros(8), bounds=PAIRED)[1]))
    percent = scores * 100
    assert percent["L0H1"]["ci_low"] == pytest.approx(100 * scores["L0H1"]["ci_low"])
    assert (scores + scores)["L0H1"]["ci_high"] == pytest.approx(2)
    ships = HeadScores.from_values(np.random.default_rng(0).gamma(0.2, size=(4, 4, 6)), name="a", kind="ships")
    assert (ships.dataset["ci_low"].values >= 0).all()
    assert ((ships - ships * 0.5).dataset["ci_low"].values < 0).any()


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((1, 0), r"bounds is \(1, 0\); give the lower and the upper end"),
        ((0,), "give the lower and the upper end"),
        ((0.5, 1, True), "a share lies between 0 and 1"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        HeadScores.from_values(np.ones((1, 1, 4)), bounds=bounds, **METADATA)
    assert Bounds.of((0, 1, True)) == Bounds(0, 1, True)
