"""A text in a panel that has nothing to draw."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from mechheads.plots.parts.text import plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LETTER, _LINE = 6.5, 17
"""The width of a letter and the height of a line, in pixels."""


def add_note(figure: go.Figure, text: str, place: dict[str, Any], size: tuple[float, float]) -> None:
    """Write a text into a panel, wrapped to its width and cut to its height.

    Args:
        place: the panel, as in ``Panels.place``.
        size: width and height of the panel in pixels.
    """
    import plotly.graph_objects as go

    width, height = size
    longest, most = max(10, int(0.9 * width / _LETTER)), max(1, int(0.9 * height / _LINE))
    lines = wrap(text, longest)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: longest - 2] + " …"]
    figure.add_trace(go.Scatter(x=[None], y=[None], showlegend=False), **place)  # a panel without traces is not drawn
    figure.add_annotation(
        text="<br>".join(map(plain, lines)),
        hovertext="<br>".join(map(plain, wrap(text, 90))),
        x=0.5,
        y=0.5,
        xref="x domain",
        yref="y domain",
        showarrow=False,
        font={"size": 12, "color": "#777777"},
        **place,
    )


UNMARKED: dict[str, Any] = {"tickmode": "array", "tickvals": [], "showgrid": False, "zeroline": False}
"""The settings of an axis of a panel without data."""
