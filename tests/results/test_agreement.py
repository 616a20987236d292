"""Whether rankings of heads agree: against scipy, pandas and by hand."""

# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads.results.agreement import overlap, side_by_side
from mechheads.results.scores import HeadScores


def score(values: np.ndarray, extra: dict[str, list[str]] | None = None) -> HeadScores:
    return HeadScores.from_scores(values, name="made", unit="", kind="demo", extra=extra)


def drawn(seed: int, shape: tuple[int, ...] = (6, 4)) -> np.ndarray:
    """Numbers with many ties."""
    return np.random.default_rng(seed).integers(0, 8, shape).astype(float)


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ({}, r"results is \{\}; give scores by name"),
        (score(drawn(0)), "results is <HeadScores .*>; give scores by name"),
        ({"a": score(drawn(0)), "b": score(drawn(0, (4, 6)))}, "do not align: n_layers is 6 and 4"),
        ({"a": score(drawn(0, (6, 4, 1)), {"x": ["y"]})}, r"results\['a'\] has the extra dim"),
    ],
)
def test_what_cannot_be_compared(results: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        side_by_side(results)


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
