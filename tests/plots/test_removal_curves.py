"""Figures of causal evidence: which numbers each line and point shows, and nothing read as markup."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads import plots
from mechheads.heads import HeadId
from mechheads.labels.causal import CausalEvidence
from mechheads.labels.classify import label_heads
from mechheads.labels.removal import Removal
from mechheads.results.scores import HeadScores

HEADS = ["L2H1", "L0H3", "L1H1"]
CURVES = {
    "relation": [0.9, 0.6, 0.3, 0.1],
    "random 1": [0.9, 0.9, 0.7, 0.8],
    "random 2": [0.9, 0.8, 0.8, np.nan],
    "<b>easy": [1.0, 1.0, 0.9, 0.9],
}
TABLE = pd.DataFrame(
    [
        {"k": k, "which": which, "accuracy": share, "ci_low": share - 0.1, "ci_high": share + 0.05}
        for which, curve in CURVES.items()
        for k, share in enumerate(curve)
    ]
)
LINES: dict[str, Any] = {"random": ["random 1", "random 2"], "controls": ["<b>easy"]}


def lines(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def test_removal_has_a_line_for_the_relation_the_random_heads_and_each_control() -> None:
    figure = plots.removal_curves(TABLE, "capitals", HEADS, **LINES)
    found = lines(figure)
    assert list(found) == ["random heads, 2 draws", "control: &lt;b&gt;easy", "capitals"]
    assert found["capitals"].x.tolist() == [0, 1, 2, 3]
    assert found["capitals"].y.tolist() == CURVES["relation"]
    assert found["control: &lt;b&gt;easy"].y.tolist() == CURVES["<b>easy"]
    assert found["random heads, 2 draws"].y.tolist() == pytest.approx([0.9, 0.85, 0.75, 0.8])
    assert found["control: &lt;b&gt;easy"].line.dash == "dash"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("heads removed, best first", "accuracy")
    assert list(figure.layout.xaxis.tickvals) == [0, 1, 2, 3]
    assert figure.layout.title.text == "capitals without its heads"


def test_bands_are_the_interval_and_the_range_of_the_draws() -> None:
    bands = {trace.legendgroup: trace for trace in plots.removal_curves(TABLE, "it", HEADS, **LINES).data if trace.fill}
    assert bands["it"].x.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    np.testing.assert_allclose(bands["it"].y, [0.8, 0.5, 0.2, 0.0, 0.15, 0.35, 0.65, 0.95])
    np.testing.assert_allclose(bands["random heads, 2 draws"].y, [0.9, 0.8, 0.7, 0.8, 0.8, 0.8, 0.9, 0.9])
    assert all(band.hoverinfo == "skip" and band.showlegend is False for band in bands.values())


def test_hover_tells_the_head_removed_last_and_the_interval() -> None:
    found = lines(plots.removal_curves(TABLE, "<i>it", HEADS, **LINES))
    own = found["&lt;i&gt;it"].text
    assert own[0] == "<b>&lt;i&gt;it</b><br>with all heads<br>accuracy 0.90 [0.80, 0.95]"
    assert own[1] == "<b>&lt;i&gt;it</b><br>without L2H1<br>accuracy 0.60 [0.50, 0.65]"
    assert own[3] == "<b>&lt;i&gt;it</b><br>without 3 heads, the last L1H1<br>accuracy 0.10 [0.00, 0.15]"
    assert found["control: &lt;b&gt;easy"].text[2].startswith("<b>&lt;b&gt;easy</b><br>without 2 heads, the last L0H3")
    random = found["random heads, 2 draws"].text
    assert random[1] == "<b>&lt;i&gt;it</b><br>without 1 random head<br>accuracy 0.85, 0.80 to 0.90"


def test_what_a_stopped_run_did_not_reach_is_left_out() -> None:
    part = TABLE.copy()
    part.loc[part["which"].ne("relation") | part["k"].gt(1), ["accuracy", "ci_low", "ci_high"]] = np.nan
    figure = plots.removal_curves(part, "it", HEADS, **LINES)
    band = next(trace for trace in figure.data if trace.fill and trace.legendgroup == "it")
    assert band.x.tolist() == [0, 1, 1, 0]
    assert np.isnan(lines(figure)["random heads, 2 draws"].y).all()


def test_a_removal_draws_itself() -> None:
    provenance = {"random": {"random 1": ["L2H0"], "random 2": ["L2H2"]}, "controls": {"<b>easy": "abc"}}
    heads = tuple(map(HeadId.parse, HEADS))
    removal = Removal("capitals", heads, ((), ()), TABLE, np.empty((16, 0)), provenance)
    assert removal.plot() == plots.removal_curves(TABLE, "capitals", HEADS, **LINES)
    assert removal.plot(title="<mine>").layout.title.text == "&lt;mine&gt;"


def test_a_line_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="table has no rows for 'random 3'; it has rows for 'relation', 'random 1'"):
        plots.removal_curves(TABLE, "it", HEADS, random=["random 3"])


# -- total effects --------------------------------------------------------------------------------------

RELATIONS = ["capital", "past"]
TOTAL = np.array([[[0.6, 0.0], [0.4, 0.0]], [[0.0, 0.5], [0.02, np.nan]]])
PHI = np.array([[[0.8, 0.0], [0.0, 0.0]], [[0.5, 0.1], [0.0, 0.0]]])


def scores(values: np.ndarray, p: np.ndarray, name: str, **variables: Any) -> HeadScores:
    return HeadScores.from_scores(
        values,
        ci_low=values - 0.1,
        ci_high=values + 0.2,
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
    return CausalEvidence(scores(TOTAL, small, "total"), scores(TOTAL / 2, np.ones_like(small), "direct"), {}, {}, {})


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
    part = CausalEvidence(found.total.select(relation=["past"]), found.direct.select(relation=["past"]), {}, {}, {})
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
