"""What a result looks like as the last line of a notebook cell or in a terminal."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.results.shown import Rows, html_table, ranks, tidy

METADATA = {"name": "effect", "unit": "logits", "kind": "demo"}


def cells(html: str) -> list[list[str]]:
    """The texts of a table in HTML, row by row."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in rows]


def test_tables_show_heads_first_no_noise_and_no_empty_columns():
    table = pd.DataFrame(
        {
            "relation": ["a", "b"],
            "layer": [23, 0],
            "head": [4, 11],
            "score": [0.51234567, 3.469e-18],
            "ci_low": [np.nan, np.nan],
            "note": ["", None],
            "p_value": [1e-20, 0.5],
            "n": [3, 0],
        }
    )
    assert cells(html_table(table)) == [
        ["head", "relation", "score", "p_value", "n"],
        ["L23H4", "a", "0.5123", "&lt; 0.001", "3"],
        ["L0H11", "b", "0", "0.5", "0"],
    ]
    assert table.columns.tolist()[:3] == ["relation", "layer", "head"]  # the table itself stays as it is


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ([3.469e-18, -1e-17], ["0", "0"]),
        ([1e-8, 2e-8], ["1e-08", "2e-08"]),
        ([1e-8, 50.0], ["0", "50"]),
        ([-0.0, 1.0], ["0", "1"]),
        ([np.nan, 1.25], ["", "1.25"]),
        ([np.inf, 1.0], ["inf", "1"]),
        (["x", 0.5], ["x", "0.5"]),
        ([True, False], ["True", "False"]),
    ],
)
def test_cells(column, shown):
    assert tidy(pd.DataFrame({"value": column}))["value"].tolist() == shown


def test_what_was_left_out_of_relations_is_counted_where_scores_are_printed():
    lost = {
        "target of several tokens": ["a -> b"] * 7,
        "source and target of several tokens": ["c -> d"] * 2,
        "explained by english_words": ["e -> f"] * 2,
    }
    ledger = {"italian": {"given": 12, "kept": 1, "scored": True, "lost": lost}}

    def printed(**ledger: object) -> str:
        return " ".join(str(mh.HeadScores.from_scores(np.eye(2), provenance={"ledger": ledger}, **METADATA)).split())

    told = "1 of 12 pairs; more than one token: 9, explained by english_words: 2"
    assert told in printed(**ledger)
    other = {"given": 1_000, "kept": 999, "scored": True, "lost": {"explained by synonyms": ["g -> h"]}}
    told = "2 relations: 1,000 of 1,012 pairs; more than one token: 9, explained by a rival: 3"
    assert told in printed(**ledger, other=other)
    assert "pairs" not in printed(whole={"given": 2, "kept": 2, "scored": True, "lost": {}})
    assert "pairs" not in printed()


def frame(**columns) -> pd.DataFrame:
    heads = {"layer": [23, 0], "head": [4, 11]}
    return pd.DataFrame(heads | columns, index=["L23H4", "L0H11"])


def test_the_score_its_interval_and_the_family_p_come_first():
    table = frame(
        p_value=[0.25, 1e-9],
        relation=["a", "b"],
        score=[0.5, 0.25],
        ci_low=[0.123456, 1e-20],
        ci_high=[0.9, 0.30],
        **{f"more_{i}": [1.0, 2.0] for i in range(5)},
        p_family=[0.0078, 0.0],
    )
    lines = str(Rows(table)).splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["L23H4", "0.25", "a", "0.5", "[0.123,", "0.9]", "0.0078", "1", "1"],
        ["L0H11", "<", "0.001", "b", "0.25", "[0,", "0.3]", "<", "0.001", "2", "2"],
    ]
    assert lines[0].split() == ["head", "p_value", "relation", "score", "interval", "p_family", "more_0", "more_1"]
    assert lines[3] == "not shown: more_2, more_3, more_4 (choose with columns=[...])"
    assert [len(row) for row in cells(html_table(table))] == [8, 8, 8]


def test_columns_are_chosen_by_name():
    scores = mh.HeadScores.from_scores(np.array([[1.0, 3.0]]), p_value=np.array([[0.5, 1e-5]]), **METADATA)
    top = scores.top(1, columns=["q_value", "score"])
    assert top.columns.tolist() == ["q_value", "score"] and top.loc["L0H1", "score"] == 3
    assert str(top).splitlines() == ["head  q_value  score", "L0H1  < 0.001      3"]
    with pytest.raises(ValueError, match=r"there is no 'p_valu'; choose among .*p_value.* Did you mean"):
        scores.top(columns=["p_valu"])
    with pytest.raises(ValueError, match=r"columns is the text 'score'; give a list, such as \['score'\]"):
        scores.top(columns="score")


def test_rows_are_a_dataframe_like_any_other():
    rows = mh.HeadScores.from_scores(np.array([[1.0, 3.0]]), **METADATA).to_dataframe()
    assert isinstance(rows, pd.DataFrame) and isinstance(rows.head(1), Rows)
    same = pd.DataFrame(rows)
    pd.testing.assert_frame_equal(rows, same)
    assert pickle.loads(pickle.dumps(rows)).equals(rows) and copy.deepcopy(rows).equals(rows)
    assert rows.query("score > 2")["head"].tolist() == [1]
    long = Rows(pd.DataFrame({"score": np.arange(1000.0)}))
    assert "and 990 more rows" in str(long) and len(str(long).splitlines()) == 12


def test_equal_scores_share_the_better_rank() -> None:
    assert ranks(pd.Series([3.0, 2.0, 2.0, 1.0])) == [1, 2, 2, 4]
