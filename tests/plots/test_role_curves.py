"""Figures of roles: which numbers each line, band and map shows, how panels stand, and nothing read as markup."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads.gating.roles.role_curves import RoleCurves
from mechheads.heads import HeadId
from mechheads.plots.parts import symlog
from mechheads.plots.role_curves import role_curves, role_map
from mechheads.results.scores import HeadScores

LINES = {
    "facilitation": [0.0, -1.0, -3.0],
    "interference": [0.0, 0.4, 0.2],
    "irrelevance": [0.0, 0.1, -0.1],
    "random 1": [0.0, -0.2, -1.0],
    "random 2": [0.0, -0.4, -0.6],
}
COUNTS = [0, 1, 5]
HEADS = tuple(HeadId(layer, 1) for layer in range(5))


def made(task: str = "math", model: str = "demo", over: str = "items", **lines: list[float]) -> RoleCurves:
    """Curves by hand; intervals reach from 0.5 below to 0.25 above."""
    table = pd.DataFrame(
        [
            {"which": which, "k": k, "change": change, "ci_low": change - 0.5, "ci_high": change + 0.25}
            for which, changes in (LINES | lines).items()
            for k, change in zip(COUNTS, changes, strict=True)
        ]
    )
    return RoleCurves(table, np.empty((len(table), 0)), dict.fromkeys(LINES, HEADS), task, model, {"over": over})


def without(start: str) -> RoleCurves:
    """The same without the lines whose names start like this."""
    curves = made()
    return replace(curves, table=curves.table[~curves.table["which"].str.startswith(start)].copy())


def lines(figure: Any, axis: str = "x") -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name and trace.xaxis == axis}


def bands(figure: Any, axis: str = "x") -> dict[str, Any]:
    return {trace.legendgroup: trace for trace in figure.data if trace.fill and trace.xaxis == axis}


def test_a_line_for_each_role_and_one_for_random_orders() -> None:
    found = lines(role_curves(made()))
    assert list(found) == ["random orders", "Facilitation", "Irrelevance", "Interference"]
    for role in ("facilitation", "irrelevance", "interference"):
        assert found[role.title()].x.tolist() == COUNTS
        assert found[role.title()].y.tolist() == LINES[role]
    assert found["random orders"].y.tolist() == pytest.approx([0, -0.3, -0.8])
    red, yellow, blue = (
        [int(part) for part in found[name].line.color[4:-1].split(",")]
        for name in ("Interference", "Irrelevance", "Facilitation")
    )
    assert red[0] > 2 * max(red[1:]) and blue[2] > 2 * blue[0] and min(yellow[:2]) > 2 * yellow[2]


def test_bands_are_intervals_and_the_range_of_the_random_orders() -> None:
    found = bands(role_curves(made()))
    assert list(found) == ["random orders", "Facilitation", "Irrelevance", "Interference"]
    assert found["Facilitation"].x.tolist() == [0, 1, 5, 5, 1, 0]
    np.testing.assert_allclose(found["Facilitation"].y, [-0.5, -1.5, -3.5, -2.75, -0.75, 0.25])
    np.testing.assert_allclose(found["random orders"].y, [0, -0.4, -1, -0.6, -0.2, 0])
    assert all(band.hoverinfo == "skip" and band.showlegend is False for band in found.values())


def test_hover_tells_the_head_gated_off_last() -> None:
    found = lines(role_curves(made("<b>it", "gpt2")))
    assert found["Facilitation"].text == (
        "<b>Facilitation</b>, &lt;b&gt;it, gpt2<br>no head gated off<br>+0.00 nats [-0.50, +0.25]",
        "<b>Facilitation</b>, &lt;b&gt;it, gpt2<br>1 head gated off, the last L0H1<br>-1.00 nats [-1.50, -0.75]",
        "<b>Facilitation</b>, &lt;b&gt;it, gpt2<br>5 heads gated off, the last L4H1<br>-3.00 nats [-3.50, -2.75]",
    )
    assert found["random orders"].text[2].endswith("5 heads gated off<br>-0.80 nats, -1.00 to -0.60")
    over_seeds = lines(role_curves(made(over="seeds")))["Facilitation"]
    assert over_seeds.text[2].split("<br>")[1] == "5 heads gated off"


def test_tasks_are_rows_and_models_columns() -> None:
    """By their names, in the order they come, with one legend; where nothing was measured the panel says so."""
    several = [made("syntax", "a"), made("math", "b"), made("math", "a", facilitation=[0, -7, -8])]
    figure = role_curves(several)
    assert [note.text for note in figure.layout.annotations] == ["a", "b", "not measured"]
    titles = {axis: figure.layout[axis].title.text for axis in ("yaxis", "yaxis2", "yaxis3", "yaxis4")}
    assert titles["yaxis"].startswith("<b>Syntax</b>") and titles["yaxis3"].startswith("<b>Math</b>")
    assert titles["yaxis2"] is titles["yaxis4"] is None
    assert figure.layout.xaxis3.title.text == figure.layout.xaxis4.title.text == "number of heads gated off"
    assert figure.layout.xaxis.title.text is None
    assert lines(figure, "x3")["Facilitation"].y.tolist() == [0, -7, -8]
    assert [trace.x for trace in figure.data if trace.xaxis == "x2"] == [(None,)]
    assert (figure.layout.annotations[2].xref, figure.layout.annotations[2].yref) == ("x2 domain", "y2 domain")
    assert [trace.name for trace in figure.data if trace.showlegend] == list(lines(figure))
    assert figure.layout.yaxis2.matches == "y" and figure.layout.yaxis4.matches == "y3"
    assert figure.layout.yaxis3.matches is None


def test_names_may_be_given() -> None:
    figure = role_curves({"<i>": {"$x$": made()}, "math": {"$x$": made()}}, title="<t>")
    assert figure.layout.annotations[0].text == "&#36;x&#36;"
    assert figure.layout.yaxis.title.text.startswith("<b>&lt;i&gt;</b>")
    assert figure.layout.title.text == "&lt;t&gt;"


def test_zero_is_a_dashed_line_in_every_panel() -> None:
    figure = role_curves([made("syntax"), made("math")])
    assert [(shape.y0, shape.y1, shape.line.dash, shape.yref) for shape in figure.layout.shapes] == [
        (0, 0, "dash", "y"),
        (0, 0, "dash", "y2"),
    ]


def test_what_a_stopped_run_did_not_reach_is_left_out() -> None:
    curves = made()
    curves.table.loc[curves.table["k"] == 5, ["change", "ci_low", "ci_high"]] = np.nan
    figure = role_curves(curves)
    assert bands(figure)["Facilitation"].x.tolist() == [0, 1, 1, 0]
    assert np.isnan(lines(figure)["Facilitation"].y[2])


def test_without_random_orders_or_intervals() -> None:
    curves = without("random")
    curves.table[["ci_low", "ci_high"]] = np.nan
    figure = role_curves(curves)
    assert list(lines(figure)) == ["Facilitation", "Irrelevance", "Interference"]
    assert lines(figure)["Interference"].text[1].endswith("<br>+0.40 nats")


def test_what_cannot_be_drawn() -> None:
    for nothing in ([], {}, {"math": {}}):
        with pytest.raises(ValueError, match="curves is empty"):
            role_curves(nothing)
    with pytest.raises(ValueError, match="two of the curves are of task 'math' and model 'demo'"):
        role_curves([made(), made()])
    with pytest.raises(ValueError, match="the curves of task 'math' and model 'demo' have no rows for 'irrelevance'"):
        role_curves(without("irrelevance"))


def test_a_symmetric_logarithmic_axis_moves_the_lines_and_names_the_values() -> None:
    curves = made()
    usual, warped = lines(role_curves(curves)), lines(role_curves(curves, symlog=0.1))
    for name, line in usual.items():
        np.testing.assert_allclose(warped[name].y, symlog(line.y, 0.1))
        assert list(warped[name].text) == list(line.text)
    axis = role_curves(curves, symlog=0.1).layout.yaxis
    assert [float(text.replace("−", "-")) for text in axis.ticktext] == sorted(
        float(text.replace("−", "-")) for text in axis.ticktext
    )
    np.testing.assert_allclose(axis.tickvals, symlog([float(text.replace("−", "-")) for text in axis.ticktext], 0.1))
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"symlog is .*; it must be above 0"):
            role_curves(curves, symlog=wrong)


def test_the_grid_stays_readable() -> None:
    """Panels do not shrink below 180 pixels, and the marks of the first column have the room of the others."""
    for columns in (1, 2, 4, 8):
        layout = role_curves([made("math", str(i)) for i in range(columns)]).layout
        inner = layout.width - layout.margin.l - layout.margin.r
        widths = [
            inner * (layout[f"xaxis{i or ''}"].domain[1] - layout[f"xaxis{i or ''}"].domain[0])
            for i in (0, *range(2, columns + 1))
        ]
        assert min(widths) >= 175 and max(widths) - min(widths) < 1


# Maps


def role_scores(values: np.ndarray, name: str) -> HeadScores:
    return HeadScores.from_scores(
        values,
        ci_low=values - 0.1,
        ci_high=values + 0.1,
        name=name,
        unit="gate",
        kind="roles",
        provenance={"task": "<b>"},
    )


def test_a_map_for_each_role_from_0_to_1() -> None:
    roles = {name: role_scores(np.full((2, 3), i / 10), name) for i, name in enumerate(LINES) if " " not in name}
    roles["facilitation"].scores[1, 2] = 0.4
    figure = role_map(roles)
    assert [note.text for note in figure.layout.annotations] == ["Facilitation", "Interference", "Irrelevance"]
    assert [trace.z[0][0] for trace in figure.data] == [0, 0.1, 0.2]
    assert figure.data[0].z[1][2] == 0.4
    assert figure.data[0].text[1][2].startswith("<b>L1H2</b> Facilitation<br>0.4 gate")
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    assert figure.layout.title.text == "Roles of heads, &lt;b&gt;"
    assert role_map(roles, title="mine").layout.title.text == "mine"
    with pytest.raises(ValueError, match="roles must be the result of"):
        role_map({})


def test_figures_are_valid_json() -> None:
    assert json.loads(role_curves(made()).to_json())["data"][-1]["type"] == "scatter"
