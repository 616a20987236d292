"""Lines over counts of heads with bands behind them, as several figures draw them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

OWN, OWN_BAND = "#b2182b", "rgba(178, 24, 43, 0.13)"
"""Of the heads that a figure is about."""
RANDOM, RANDOM_BAND = "#6b6b6b", "rgba(107, 107, 107, 0.22)"
"""Of random heads beside them."""


def line_trace(x: Any, y: Any, name: str, text: list[str], line: dict[str, Any]) -> go.Scatter:
    """A line with a dot and a hover text for each point; ``line`` is plotly's."""
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
    """The area between two curves, as far as both are known; ``group`` is the name of the line that it belongs to."""
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
