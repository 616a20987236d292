"""Lines over the number of heads, with bands, for several figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.plots.parts import FRAME, count_ticks, figure_of, figure_title

if TYPE_CHECKING:
    import plotly.graph_objects as go

OWN, OWN_BAND = "#b2182b", "rgba(178, 24, 43, 0.13)"
"""Colours of the heads that a figure is about."""
RANDOM, RANDOM_BAND = "#6b6b6b", "rgba(107, 107, 107, 0.22)"
"""Colours of the random heads that they are compared with."""
_WIDTH, _HEIGHT = 620, 360


def line_trace(x: Any, y: Any, name: str, text: list[str], line: dict[str, Any]) -> go.Scatter:
    """A line with a dot and a hover text for each point; ``line`` is plotly's line style."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=np.asarray(x),
        y=np.asarray(y),
        mode="lines+markers",
        marker={"size": 5},
        line=line,
        name=name,
        legendgroup=name,
        text=text,
        hovertemplate="%{text}<extra></extra>",
    )


def band_trace(x: Any, low: Any, high: Any, colour: str, group: str) -> go.Scatter:
    """The area between two curves at the points at which both are finite; ``group`` is the name of the band's line."""
    import plotly.graph_objects as go

    known = np.isfinite(np.asarray(low)) & np.isfinite(np.asarray(high))
    along, bottom, top = (np.asarray(part)[known] for part in (x, low, high))
    return go.Scatter(
        x=np.concatenate([along, along[::-1]]),
        y=np.concatenate([bottom, top[::-1]]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=colour,
        hoverinfo="skip",
        legendgroup=group,
        showlegend=False,
    )


def share_figure(
    traces: Sequence[go.Scatter], most: int, *, title: str, x_title: str, y_title: str, legend_width: int
) -> go.Figure:
    """A figure of shares, from 0 to 1, over numbers of heads from 0 to ``most``, with these traces.

    Args:
        legend_width: the width of the legend in pixels.
    """

    figure = figure_of(traces)
    figure.update_xaxes(**FRAME, **count_ticks(most + 1, _WIDTH), title_text=x_title, range=[-0.03 * most, 1.03 * most])
    figure.update_yaxes(
        **FRAME,
        title_text=y_title,
        range=[-0.03, 1.03],
        tickformat=".0%",
        dtick=0.2,
        showgrid=True,
    )
    figure.update_layout(
        title=figure_title(title),
        plot_bgcolor="white",
        legend={"traceorder": "reversed"},
        showlegend=True,
        width=_WIDTH + 70 + legend_width,
        height=_HEIGHT + 130,
        margin={"l": 70, "r": legend_width, "t": 70, "b": 60},
    )
    return figure
