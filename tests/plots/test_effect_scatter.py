"""Figures of causal evidence: which numbers each point shows, and nothing read as markup."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads import plots
from mechheads.labels.causal import CausalEvidence
from mechheads.labels.classify import label_heads
from mechheads.results.scores import HeadScores

RELATIONS = ["capital", "past"]
TOTAL = np.array([[[0.6, 0.0], [0.4, 0.0]], [[0.0, 0.5], [0.02, np.nan]]])
PHI = np.array([[[0.8, 0.0], [0.0, 0.0]], [[0.5, 0.1], [0.0, 0.0]]])


def scores(values: np.ndarray, p: np.ndarray, name: str, **variables: Any) -> HeadScores:
    return HeadScores.from_scores(
        values,
        interval=(values - 0.1, values + 0.2),
        p_value=p,
        name=name,
        unit="share",
        kind="relations",
        extra={"relation": RELATIONS},
        provenance={"from": name},
        variables={
            key: (("layer", "head", "relation")[-np.ndim(value) :], np.asarray(value))
            for key, value in variables.items()
        },
    )


def evidence() -> CausalEvidence:
    small = np.where(np.isnan(TOTAL), np.nan, np.where(TOTAL > 0.3, 1e-6, 1.0))
    return CausalEvidence(scores(TOTAL, small, "total"), scores(TOTAL / 2, np.ones_like(small), "direct"), {})


def phi() -> HeadScores:
    zero = np.zeros_like(PHI)
    return scores(
        PHI,
        np.where(PHI > 0.3, 1e-6, 1.0),
        "phi",
        suppression=zero,
        p_suppression=zero + 1,
        null_phi=zero,
        null_suppression=zero,
        relation_category=np.array(["Knowledge", "Linguistic"], dtype=object),
    )


def points(figure: Any) -> dict[tuple[str, str], tuple[str, float, float]]:
    """Of each relation's panel (by its axis) and head: the kind, and where it is drawn."""
    return {
        (trace.xaxis, text.split("</b>")[0].removeprefix("<b>")): (trace.name, float(x), float(y))
        for trace in figure.data
        for text, x, y in zip(trace.hovertext, trace.x, trace.y, strict=True)
    }


def test_with_labels_points_lie_at_phi_and_total_and_wear_the_verdict() -> None:
    found = evidence()
    labels = label_heads(phi(), causal=found)
    figure = found.plot(labels, title="<both>")
    assert points(figure) == {
        ("x", "L0H0"): ("confirmed", 0.8, 0.6),
        ("x", "L0H1"): ("in context only", 0.0, 0.4),
        ("x", "L1H0"): ("weights only", 0.5, 0.0),
        ("x", "L1H1"): ("neither", 0.0, 0.02),
        ("x2", "L0H0"): ("neither", 0.0, 0.0),
        ("x2", "L0H1"): ("neither", 0.0, 0.0),
        ("x2", "L1H0"): ("in context only", 0.1, 0.5),
    }  # L1H1 was not patched for the past tense
    assert [note.text for note in figure.layout.annotations] == RELATIONS
    assert figure.layout.title.text == "&lt;both&gt;"
    assert figure.layout.xaxis.title.text == "relation score φ"
    assert figure.layout.yaxis.title.text == "total effect (share restored)"
    assert len({trace.marker.color for trace in figure.data}) == 4
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(shown) == ["confirmed", "in context only", "neither", "weights only"]
    first = next(trace for trace in figure.data if trace.name == "confirmed")
    assert first.hovertext[0] == (
        "<b>L0H0</b> capital<br>confirmed<br>φ 0.80 [0.70, 1.00]<br>total effect 0.60 [0.50, 0.80]<br>"
        "direct effect 0.30 [0.20, 0.50]"
    )
    assert list(first.text) == ["L0H0"]
    assert [first.error_y.array[0], first.error_y.arrayminus[0]] == pytest.approx([0.2, 0.1])
    quiet = next(trace for trace in figure.data if trace.name == "neither")
    assert quiet.text is None


def test_the_verdicts_drawn_are_those_of_the_table() -> None:
    found = evidence()
    labels = label_heads(phi(), causal=found)
    table = labels.table().set_index(["head", "relation"])
    assert table.loc[("L1H0", "capital"), ["relation_verdict", "verdict"]].tolist() == ["weights only"] * 2
    assert table.loc[("L0H1", "past"), "relation_verdict"] == ""
    assert "relation_verdict" not in label_heads(phi()).table()


def test_without_labels_total_effects_are_set_against_direct_ones() -> None:
    figure = evidence().plot()
    found = points(figure)
    assert found["x", "L0H0"] == ("interval excludes 0", 0.3, 0.6)
    assert found["x", "L1H1"] == ("interval includes 0", 0.01, 0.02)
    assert figure.layout.xaxis.title.text == "direct effect (share restored)"
    assert len(figure.layout.shapes) == 2  # a line on which total and direct effect are the same
    text = next(trace for trace in figure.data if trace.name == "interval excludes 0").hovertext[0]
    assert text == "<b>L0H0</b> capital<br>total effect 0.60 [0.50, 0.80]<br>direct effect 0.30 [0.20, 0.50]"


def test_names_stand_where_there_is_room() -> None:
    """Of two points side by side the one further out is named; at the right edge the name goes to the left."""
    at = {"L0H0": (0.10, 0.10), "L0H1": (0.11, 0.10), "L0H2": (0.90, 0.90), "L0H3": (0.10, 0.50), "L1H0": (0.0, -0.6)}
    rows = [
        {
            "head": head,
            "relation": "r",
            "direct": x,
            "direct_low": x,
            "direct_high": x,
            "total": y,
            "total_low": -1.0 if head == "L1H0" else y - 0.01,
            "total_high": y + 0.02,
        }
        for head, (x, y) in at.items()
    ]
    figure = plots.effect_scatter(pd.DataFrame(rows))
    (trace,) = figure.data
    assert dict(zip(at, trace.text, strict=True)) == {name: "" if name == "L0H0" else name for name in at}
    assert dict(zip(at, trace.textposition, strict=True))["L0H2"] == "middle left"
    low, high = figure.layout.yaxis.range
    assert low < -1.0 and high > 0.92  # bars are not cut off


def test_labels_of_more_relations_than_were_patched_give_a_panel_to_these_alone() -> None:
    found = evidence()
    part = CausalEvidence(found.total.select(relation=["past"]), found.direct.select(relation=["past"]), {})
    figure = part.plot(label_heads(phi(), causal=part))
    assert [note.text for note in figure.layout.annotations] == ["past"]


def test_labels_of_other_evidence_are_refused() -> None:
    with pytest.raises(ValueError, match="labels were made without this evidence"):
        evidence().plot(label_heads(phi()))


def test_a_table_without_effects_is_refused() -> None:
    with pytest.raises(ValueError, match="table holds no total effect"):
        plots.effect_scatter(pd.DataFrame({"head": ["L0H0"], "relation": ["r"], "total": [np.nan]}))


def test_figures_are_json_and_names_are_no_markup() -> None:
    table = pd.DataFrame(
        {
            "head": ["L0H0"],
            "relation": ["<b>r"],
            "total": [1.0],
            "total_low": [0.5],
            "total_high": [1.5],
            "direct": [0.2],
            "direct_low": [0.1],
            "direct_high": [0.3],
        }
    )
    written = json.loads(plots.effect_scatter(table).to_json())
    assert written["layout"]["annotations"][0]["text"] == "&lt;b&gt;r"
    assert written["data"][0]["hovertext"][0].startswith("<b>L0H0</b> &lt;b&gt;r<br>")
