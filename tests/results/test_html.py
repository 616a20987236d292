"""What a result looks like as the last line of a notebook cell or in a terminal."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.results.html import html_table, tidy

ABOUT = {"name": "effect", "unit": "logits", "kind": "demo"}


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
        ["L23H4", "a", "0.5123", "1e-20", "3"],
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


def test_an_index_with_names_is_kept_and_an_empty_table_keeps_its_headings():
    table = pd.DataFrame({"value": [1.0]}, index=pd.Index(["keep"], name="fit"))
    assert cells(html_table(table)) == [["fit", "value"], ["keep", "1"]]
    assert cells(html_table(pd.DataFrame({"value": []}))) == [["value"]]
    assert "<b>" not in html_table(pd.DataFrame({"<b>": ["<b>"]}))


def test_scores_show_the_head_and_the_score_first():
    score = np.array([[0.25, 3.469e-18], [np.nan, -0.5]])
    scores = mh.HeadScores.from_scores(score, **ABOUT)
    assert cells(scores._repr_html_()) == [["head", "score"], ["L1H1", "-0.5"], ["L0H0", "0.25"], ["L0H1", "0"]]
    labelled = mh.HeadScores.from_scores(np.array([[[0.25, 0.5]]]), extra={"relation": ["x", "y"]}, **ABOUT)
    assert cells(labelled._repr_html_())[:2] == [["head", "relation", "score"], ["L0H0", "y", "0.5"]]


def test_rows_of_tables_are_named_after_their_heads():
    scores = mh.HeadScores.from_scores(np.array([[1.0, 3.0], [2.0, 0.0]]), **ABOUT)
    assert scores.top(2).index.tolist() == ["L0H1", "L1H0"]
    assert str(scores.top(1)).splitlines()[1].startswith("L0H1")
    table = scores.to_dataframe()
    assert table.loc["L1H0", "score"] == 2.0 and table.columns.tolist()[:3] == ["layer", "head", "score"]
    labelled = mh.HeadScores.from_scores(np.ones((1, 2, 2)), extra={"relation": ["x", "y"]}, **ABOUT)
    assert labelled.to_dataframe().loc["L0H1", "relation"].tolist() == ["x", "y"]


def test_what_is_asked_for_is_a_few_lines(loaded):
    small = loaded("llama")
    plan = mh.plan(small, [" The capital of France is"], intervention=mh.Zero())
    assert repr(plan) == str(plan) and 3 <= len(repr(plan).splitlines()) <= 6 and "HeadId" not in repr(plan)
    pairs = mh.PromptPairs.from_templates(
        "The capital of {subject} is",
        {"subject": [("France", "Italy"), ("Spain", "Japan")]},
        answer=[(" Paris", " Rome"), (" Madrid", " Tokyo")],
    )
    task = mh.Task(["The capital of France is"] * 40, [" Paris"] * 40, name="capitals", cluster=["a", "b"] * 20)
    tokens = mh.Prompts([" The capital of France is"], positions={"subject": [" France"]}).tokens(small)
    items = mh.Task([" The capital of France is"], [" Paris"]).tokens(small)
    assert [repr(each) for each in (pairs, mh.Prompts(["Hi"]), task, tokens, items)] == [
        "<PromptPairs: 2 pairs, position subject, 2 clusters\n"
        "  clean:     'The capital of France is' -> ' Paris', ...\n"
        "  corrupted: 'The capital of Italy is' -> ' Rome', ...>",
        "<Prompts: 1 prompt\n  'Hi'>",
        "<Task 'capitals': 40 items in 2 clusters\n  'The capital of France is' -> ' Paris', ...>",
        "<Tokens of 1 prompt, up to 6 each; positions last, subject>",
        "<TaskTokens of 1 item, up to 7 each>",
    ]
    long = "word " * 500
    for each in (mh.Prompts([long] * 100), mh.Prompts([list(range(500))]), mh.Task([long], ["x"])):
        assert len(repr(each)) < 200
