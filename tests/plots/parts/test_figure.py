"""Panels have the size that they are given, and no figure offers to upload what it shows."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

import mechheads as mh
from mechheads.plots.parts.figure import Panels, figure_of, grid_of


def removed(figure: go.Figure) -> list[str]:
    return list(figure.layout.modebar.remove)


def test_empty_figures_lack_the_button() -> None:
    assert removed(figure_of()) == removed(grid_of(rows=2, cols=1)) == ["sendChartToCloud"]
    assert len(figure_of([go.Scatter(y=[1])] * 2).data) == 2


def test_it_travels_with_the_figure() -> None:
    scores = mh.HeadScores.from_scores(np.eye(3), name="identity", unit="ones", kind="demo")
    figure = scores.plot()
    assert removed(figure) == ["sendChartToCloud"]
    assert removed(plotly.io.from_json(figure.to_json())) == ["sendChartToCloud"]
    assert '"remove":["sendChartToCloud"]' in figure.to_html(include_plotlyjs=False)
    assert removed(mh.plots.attention({"L0H0": np.eye(2)}, ["a", "b"])) == ["sendChartToCloud"]


def test_panels_have_their_size_in_pixels() -> None:
    panels = Panels(rows=2, columns=3, panel_width=100, panel_height=80, gap_across=10, gap_down=20)
    figure = panels.figure(subplot_titles=list("abcde"))
    assert (panels.width, panels.height) == (320, 180)
    for axis in figure.select_xaxes():
        assert (axis.domain[1] - axis.domain[0]) * panels.width == pytest.approx(100)
    for axis in figure.select_yaxes():
        assert (axis.domain[1] - axis.domain[0]) * panels.height == pytest.approx(80)
    assert [panels.place(i) for i in (0, 2, 3)] == [{"row": 1, "col": 1}, {"row": 1, "col": 3}, {"row": 2, "col": 1}]
