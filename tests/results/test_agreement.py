"""Whether rankings of heads agree: against scipy, pandas and by hand."""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from mechheads.results.agreement import compare_roles, overlap, side_by_side
from mechheads.results.scores import HeadScores


def score(values: np.ndarray, extra: dict[str, list[str]] | None = None) -> HeadScores:
    return HeadScores.from_scores(values, name="made", unit="", kind="demo", extra=extra)


def drawn(seed: int, shape: tuple[int, ...] = (6, 4)) -> np.ndarray:
    """Numbers with many ties."""
    return np.random.default_rng(seed).integers(0, 8, shape).astype(float)


# Rank correlation


def test_correlation_is_scipys_over_the_heads_that_both_measured() -> None:
    one, other = drawn(0), drawn(1)
    one[0, 0], other[2, 3] = np.nan, np.nan
    both = np.isfinite(one) & np.isfinite(other)
    (row,) = compare_roles({"facilitation": score(one)}, {"effect": score(other)}).to_dict("records")
    assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(one[both], other[both]).statistic, abs=1e-12)
    assert (row["role"], row["other"], row["label"], row["n"]) == ("facilitation", "effect", "", 22)


def test_interval_is_a_jackknife_over_layers() -> None:
    one, other = drawn(2), drawn(3)
    whole = scipy.stats.spearmanr(one.ravel(), other.ravel()).statistic
    without = [
        scipy.stats.spearmanr(np.delete(one, layer, 0).ravel(), np.delete(other, layer, 0).ravel()).statistic
        for layer in range(6)
    ]
    error = np.sqrt(5 * np.var(np.arctanh(without)))
    reach = scipy.stats.t.ppf(0.975, 5) * error
    (row,) = compare_roles({"a": score(one)}, {"b": score(other)}).to_dict("records")
    expected = np.tanh(np.arctanh(whole) + np.array([-reach, reach]))
    np.testing.assert_allclose([row["ci_low"], row["ci_high"]], expected, atol=1e-12)


@pytest.mark.release
@pytest.mark.parametrize("n_layers", [3, 4, 8])
def test_the_interval_holds_the_true_correlation_nineteen_times_in_twenty(n_layers: int) -> None:
    """Layers share half of what varies; where both scores are drawn alike and apart, the truth is 0."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        one, other = rng.normal(size=(2, n_layers, 1)) + rng.normal(size=(2, n_layers, 9))
        (row,) = compare_roles({"a": score(one)}, {"b": score(other)}).to_dict("records")
        held += row["ci_low"] <= 0 <= row["ci_high"]
    assert 370 <= held <= 398


def test_heads_that_repeat_within_layers_make_the_interval_no_narrower() -> None:
    """Copies of a head are no news: the interval is that of the layers, where one over heads would shrink."""
    one, other = np.random.default_rng(0).normal(size=(2, 8, 1))
    wide = compare_roles({"a": score(one)}, {"b": score(other)}).iloc[0]
    many = compare_roles({"a": score(one.repeat(9, 1))}, {"b": score(other.repeat(9, 1))}).iloc[0]
    assert many["n"] == 9 * wide["n"]
    assert (many["ci_low"], many["ci_high"]) == pytest.approx((wide["ci_low"], wide["ci_high"]))


def test_a_row_for_each_role_other_and_label() -> None:
    labels = {"relation": ["capital", "past"], "context": ["with"]}
    phi = drawn(4, (6, 4, 2, 1))
    roles = {"facilitation": score(drawn(0)), "interference": score(drawn(1))}
    table = compare_roles(roles, {"effect": score(drawn(2)), "phi": score(phi, labels)})
    assert table[["role", "other", "label"]].values.tolist() == [
        [role, other, label]
        for role in roles
        for other, label in (("effect", ""), ("phi", "capital, with"), ("phi", "past, with"))
    ]
    expected = scipy.stats.spearmanr(drawn(1).ravel(), phi[..., 1, 0].ravel()).statistic
    assert table.iloc[-1]["spearman"] == pytest.approx(expected)


def test_what_cannot_be_said_is_nan() -> None:
    flat, few, one_layer = np.ones((6, 4)), np.full((6, 4), np.nan), np.full((6, 4), np.nan)
    few[0, :2], one_layer[3] = [1, 2], [1, 2, 3, 4]
    others = {"flat": score(flat), "few": score(few), "one layer": score(one_layer), "none": score(few * np.nan)}
    table = compare_roles({"a": score(drawn(0))}, others).set_index("other")
    assert table["n"].to_dict() == {"flat": 24, "few": 2, "one layer": 4, "none": 0}
    assert table["spearman"].notna().to_dict() == {"flat": False, "few": False, "one layer": True, "none": False}
    assert table[["ci_low", "ci_high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("roles", "others", "said"),
    [
        ({}, {"b": score(drawn(0))}, "roles is {}; give scores by name"),
        ({"a": score(drawn(0))}, {}, "others is {}; give scores by name"),
        ({"a": score(drawn(0))}, score(drawn(0)), "others is <HeadScores .*>; give scores by name"),
        ({"a": score(drawn(0))}, {"b": score(drawn(0, (4, 6)))}, r"others\['b'\] has 4 x 6 heads, but the first"),
        ({"a": score(drawn(0, (6, 4, 1)), {"x": ["y"]})}, {"b": score(drawn(0))}, r"roles\['a'\] has the extra dim"),
    ],
)
def test_what_cannot_be_compared(roles: Any, others: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_roles(roles, others)


def test_compare_against_pandas_and_by_hand():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 5, 4))
    left[0, 0] = np.nan
    found = HeadScores.from_scores(left, name="effect", unit="logits", kind="demo").compare(
        HeadScores.from_scores(right, name="other", unit="nats", kind="x"), k=5
    )
    table = pd.DataFrame({"left": left.ravel(), "right": right.ravel()}).dropna()
    assert found.n_heads == 19
    assert found.pearson == pytest.approx(table.corr("pearson").iloc[0, 1])
    assert found.spearman == pytest.approx(table.corr("spearman").iloc[0, 1])
    largest = [set(np.argsort(table[side].to_numpy())[-5:].tolist()) for side in ("left", "right")]
    shared = largest[0] & largest[1]
    assert found.overlap == pytest.approx(len(shared) / 5)
    assert repr(found).startswith("'effect' against 'other' over 19 heads: Pearson ")
    flat = HeadScores.from_scores(np.ones((5, 4)), name="effect", unit="logits", kind="demo")
    assert np.isnan(flat.compare(flat).pearson)
    assert flat.compare(flat).overlap == 1.0


def test_overlap_by_hand():
    def scores(*rows: list[float]) -> HeadScores:
        return HeadScores.from_scores(np.array(rows), name="demo", unit="", kind="demo")

    one, same, turned = (
        scores([6.0, 5.0, 4.0], [3.0, 2.0, 1.0]),
        scores([60.0, 50.0, 40.0], [30.0, 20.0, 10.0]),
        scores([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]),
    )
    table = overlap({"one": one, "same": same, "turned": turned}, k=4)
    assert table[["a", "b"]].values.tolist() == [["one", "same"], ["one", "turned"], ["same", "turned"]]
    assert table["shared"].tolist() == [4, 2, 2]
    assert table["by_chance"].tolist() == pytest.approx([16 / 6] * 3)
    assert table["spearman"].tolist() == pytest.approx([1, -1, -1])
    assert table["heads"].tolist() == ["L0H0 L0H1 L0H2 L1H0", "L0H2 L1H0", "L0H2 L1H0"]
    part = scores([np.nan, np.nan, 4.0], [3.0, 2.0, 1.0])
    row = overlap({"one": one, "part": part}, k=2).iloc[0]
    assert (row["shared"], row["heads"], row["by_chance"]) == (2, "L0H2 L1H0", 1.0)  # of the four that both measured
    doubled, other = (scores(row).with_provenance(together=2) for row in ([3.0, 3.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]))
    row = overlap({"one": doubled, "other": other}, k=1).iloc[0]
    assert (row["shared"], row["by_chance"]) == (0, 0.5)  # two units, each of two heads
    with pytest.raises(ValueError, match="results has length 1; give at least two"):
        overlap({"one": one})
    with pytest.raises(ValueError):
        overlap({"one": one, "other": scores([1.0, 2.0])})


def test_heads_of_several_results_stand_side_by_side():
    total = HeadScores.from_values(np.random.default_rng(0).random((2, 3, 5)), name="total", kind="demo", unit="")
    direct = HeadScores.from_scores(np.arange(6.0).reshape(2, 3), name="direct", kind="demo", unit="")
    table = side_by_side({"total": total, "direct": direct}, ["L1H2", "L0H0"])
    assert table.index.tolist() == ["L1H2", "L0H0"] and table.loc["L1H2", "direct"] == 5
    assert table.loc["L0H0", "total_low"] == total["L0H0"]["ci_low"]
    assert str(table).splitlines()[0].split() == ["head", "total", "interval", "direct"]
    assert side_by_side({"direct": direct, "total": total}, k=2).index.tolist() == ["L1H2", "L1H1"]
    with pytest.raises(ValueError, match=r"results is \{\}; give scores by name"):
        side_by_side({})
