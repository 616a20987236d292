"""Empty figures, without plotly's button that uploads a figure's data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UPLOADS = "sendChartToCloud"


def figure_of(traces: Iterable[Any] = ()) -> go.Figure:
    """A figure of one panel with these traces."""
    import plotly.graph_objects as go

    return _offline(go.Figure(list(traces)))


def grid_of(**options: Any) -> go.Figure:
    """A figure of several panels; the options are those of ``plotly.subplots.make_subplots``."""
    from plotly.subplots import make_subplots

    return _offline(make_subplots(**options))


def _offline(figure: go.Figure) -> go.Figure:
    """Disable the upload button in the layout, so that it is absent in notebooks, pages and files."""
    return figure.update_layout(modebar={"remove": [_UPLOADS]})
