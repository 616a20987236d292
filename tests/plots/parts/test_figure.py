"""No figure offers to upload what it shows, in a notebook, a page or a file."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import plotly.io

import mechheads as mh
from mechheads.plots.parts.figure import figure_of, grid_of


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
