"""The figure of curves: which numbers each line and band shows, how panels stand, and nothing read as markup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads import plots
from mechheads.heads import HeadId
from mechheads.plots.parts import symlog
from mechheads.results.tables import Curves

LINES = {
    "first": [0.0, -1.0, -3.0],
    "<b>second": [0.0, 0.4, 0.2],
    "random 1": [0.0, -0.2, -1.0],
    "random 2": [0.0, -0.4, -0.6],
}
COUNTS = [0, 1, 5]
HEADS = tuple(HeadId(layer, 1) for layer in range(5))


def made(kind: str = "role_curves", name: str = "math", model: str = "demo", **changed: Any) -> Curves:
    """Curves by hand; intervals reach from 0.5 below to 0.25 above."""
    table = pd.DataFrame(
        [
            {"which": which, "k": k, "score": score, "ci_low": score - 0.5, "ci_high": score + 0.25}
            for which, scores in changed.get("lines", LINES).items()
            for k, score in zip(COUNTS, scores, strict=True)
        ]
    )
    metadata = {"model": model} | changed.get("metadata", {})
    return Curves(kind, name, table, dict.fromkeys(LINES, HEADS), np.empty((len(table), 0)), {}, metadata)


def attack() -> Curves:
    """With verdicts beside attack success."""
    curves = made("attack_curve", "requests")
    own = curves.table["which"] == "first"
    score = curves.table["score"].abs() / 4
    columns = {"deflected": np.where(own, 0.01, 0.04), "degenerate": np.where(own, 0.02, 0.5), "over_refusal": 0.25}
    return replace(curves, table=curves.table.assign(score=score, ci_low=score / 2, ci_high=1.0, **columns))


def circuits() -> Curves:
    return made("faithfulness_curve", "logit_diff")


def lines(figure: Any, axis: str = "x") -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name and trace.xaxis == axis}


def bands(figure: Any, axis: str = "x") -> dict[str, Any]:
    return {trace.legendgroup: trace for trace in figure.data if trace.fill and trace.xaxis == axis}


def test_a_line_for_each_order_and_one_for_random_orders() -> None:
    found = lines(plots.curves(made()))
    assert list(found) == ["random orders, 2 draws", "first", "&lt;b&gt;second"]
    assert found["first"].x.tolist() == COUNTS and found["first"].y.tolist() == LINES["first"]
    assert found["random orders, 2 draws"].y.tolist() == pytest.approx([0, -0.3, -0.8])
    looks = {(trace.line.color, trace.line.dash) for trace in found.values()}
    assert len(looks) == 3
    many = made(lines={f"line {i}": LINES["first"] for i in range(30)})
    assert len({(trace.line.color, trace.line.dash) for trace in lines(plots.curves(many)).values()}) == 30
    one = made(lines={which: LINES[which] for which in ("first", "random 1")})
    assert list(lines(plots.curves(one))) == ["random orders, 1 draw", "first"]


def test_bands_are_intervals_and_the_range_of_the_random_orders() -> None:
    found = bands(plots.curves(made()))
    assert list(found) == ["random orders, 2 draws", "first", "&lt;b&gt;second"]
    assert found["first"].x.tolist() == [0, 1, 5, 5, 1, 0]
    np.testing.assert_allclose(found["first"].y, [-0.5, -1.5, -3.5, -2.75, -0.75, 0.25])
    np.testing.assert_allclose(found["random orders, 2 draws"].y, [0, -0.4, -1, -0.6, -0.2, 0])
    assert all(band.hoverinfo == "skip" and band.showlegend is False for band in found.values())


def test_other_verdicts_are_drawn_beside_attack_success() -> None:
    figure = plots.curves(attack())
    found = lines(figure)
    assert found["deflected answers"].y.tolist() == [0.01] * 3 and found["degenerate answers"].y.tolist() == [0.02] * 3
    assert (found["degenerate answers"].line.dash, found["degenerate answers"].mode) == ("dot", "lines")
    assert found["degenerate answers"].line.width < found["first"].line.width
    assert found["degenerate answers"].text == found["first"].text
    assert found["first"].text[1] == (
        "<b>first</b>, requests, demo<br>k 1, head L0H1<br>attack success 25% [12%, 100%]"
        "<br>deflected 1%<br>degenerate 2%<br>over refusal 25%"
    )
    assert (
        found["random orders, 2 draws"]
        .text[2]
        .endswith("attack success 20%<br>draws 15% to 25%<br>deflected 4%<br>degenerate 50%<br>over refusal 25%")
    )
    layout = figure.layout
    assert layout.yaxis.tickformat == ".0%" and layout.yaxis.range[0] < 0 and layout.yaxis.range[1] > 1
    assert layout.xaxis.dtick == 1 and layout.xaxis.title.text == "number of heads ablated together"
    assert layout.title.text == "Attack success as heads are ablated" and not layout.shapes


def test_rows_are_what_was_tested_and_columns_are_models() -> None:
    """By their names, in the order they come, with one legend; where nothing was measured the panel says so."""
    changed = LINES | {"first": [0, -7, -8]}
    several = [made(name="syntax", model="a"), made(model="b"), made(model="a", lines=changed)]
    figure = plots.curves(several)
    assert [note.text for note in figure.layout.annotations] == ["a", "b", "not measured"]
    titles = {axis: figure.layout[axis].title.text for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")}
    assert titles["yaxis"].startswith("<b>Syntax</b>") and titles["yaxis3"].startswith("<b>Math</b>")
    assert titles["yaxis2"] is titles["yaxis4"] is None
    assert figure.layout.xaxis3.title.text == figure.layout.xaxis4.title.text == "number of heads gated off"
    assert figure.layout.xaxis.title.text is None
    assert lines(figure, "x3")["first"].y.tolist() == [0, -7, -8]
    assert [trace.x for trace in figure.data if trace.xaxis == "x2"] == [(None,)]
    assert (figure.layout.annotations[2].xref, figure.layout.annotations[2].yref) == ("x2 domain", "y2 domain")
    assert [trace.name for trace in figure.data if trace.showlegend] == list(lines(figure))
    assert figure.layout.yaxis2.matches == "y" and figure.layout.yaxis4.matches == "y3"
    assert figure.layout.yaxis3.matches is None
    assert [(shape.y0, shape.line.dash, shape.yref) for shape in figure.layout.shapes] == [
        (0, "dash", axis) for axis in ("y", "y3", "y4")
    ]


def test_a_symmetric_logarithmic_axis_moves_the_lines_and_names_the_values() -> None:
    curves = made()
    assert symlog([-1.0, 0.0, 0.05, 0.1, 10.0], 0.1).tolist() == [-2.0, 0.0, 0.5, 1.0, 3.0]
    usual, warped = lines(plots.curves(curves)), lines(plots.curves(curves, symlog=0.1))
    for name, line in usual.items():
        np.testing.assert_allclose(warped[name].y, symlog(line.y, 0.1))
        assert list(warped[name].text) == list(line.text)
    axis = plots.curves(curves, symlog=0.1).layout.yaxis
    ticks = [float(text.replace("−", "-")) for text in axis.ticktext]
    assert ticks == sorted(ticks)
    np.testing.assert_allclose(axis.tickvals, symlog(ticks, 0.1))
    shares = plots.curves(attack(), symlog=0.1)
    assert shares.layout.yaxis.range is None and max(lines(shares)["first"].y) > 1.03
    (across,) = plots.curves(circuits(), symlog=0.1).layout.shapes
    assert across.y0 == across.y1 == symlog(1.0, 0.1)
    printed = plots.curves(made(lines={"first": [0.5, -1.0, -120.0]}), symlog=1).layout.yaxis
    assert list(printed.ticktext) == ["−100", "−10", "−1", "0", "1", "10", "100"]
    assert [*printed.tickvals] == pytest.approx([-3, -2, -1, 0, 1, 2, 3])
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"symlog is .*; it must be .*above 0"):
            plots.curves(curves, symlog=wrong)


def test_numbers_of_heads_that_double_stand_at_equal_distances() -> None:
    doubled = made()
    table = pd.concat([doubled.table.assign(k=doubled.table["k"].map({0: ks[0], 1: ks[1], 5: ks[2]})) for ks in STEPS])
    figure = plots.curves(replace(doubled, table=table.drop_duplicates(["which", "k"]), order={}))
    axis = figure.layout.xaxis
    assert list(axis.ticktext) == ["0", "1", "2", "4", "8", "16", "32", "50"]
    np.testing.assert_allclose(axis.tickvals[:-1], np.arange(-1, 6))
    assert axis.tickvals[-1] == pytest.approx(np.log2(50))
    assert set(lines(figure)["first"].x) == set(axis.tickvals) == set(bands(figure)["first"].x)
    assert "k 50<br>" in "".join(lines(figure)["first"].text)
    assert plots.curves(made()).layout.xaxis.ticktext is None  # 0, 1, 5


STEPS = ((0, 1, 2), (4, 8, 16), (32, 50, 0))
