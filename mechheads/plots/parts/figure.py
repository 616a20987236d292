"""Empty figures, without plotly's button that uploads a figure's data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

_UPLOADS = "sendChartToCloud"


def figure_of(traces: Iterable[Any] = ()) -> go.Figure:
    """A figure of one panel with these traces."""
    import plotly.graph_objects as go

    return _offline(go.Figure(list(traces)))


def grid_of(**options: Any) -> go.Figure:
    """A figure of several panels; ``options`` go to ``plotly.subplots.make_subplots``."""
    from plotly.subplots import make_subplots

    return _offline(make_subplots(**options))


@dataclass(frozen=True)
class Panels:
    """Panels of one size in rows and columns; lengths are in pixels.

    Attributes:
        rows, columns: how many there are.
        panel_width, panel_height: the size of each.
        gap_across, gap_down: the distance between columns, and between rows.

    >>> from mechheads.plots.parts.figure import Panels
    >>> panels = Panels(rows=2, columns=3, panel_width=100, panel_height=80, gap_across=10, gap_down=20)
    >>> panels.width, panels.height, panels.place(4)
    (320, 180, {'row': 2, 'col': 2})
    """

    rows: int
    columns: int
    panel_width: int
    panel_height: int
    gap_across: float
    gap_down: float

    @property
    def width(self) -> float:
        """The width of all columns together."""
        return self.columns * self.panel_width + (self.columns - 1) * self.gap_across

    @property
    def height(self) -> float:
        """The height of all rows together."""
        return self.rows * self.panel_height + (self.rows - 1) * self.gap_down

    def place(self, i: int) -> dict[str, Any]:
        """The row and column of the i-th panel, as plotly's functions take them."""
        return {"row": i // self.columns + 1, "col": i % self.columns + 1}

    def figure(self, **options: Any) -> go.Figure:
        """A figure with these panels, empty; the options are those of ``grid_of``."""
        return grid_of(
            rows=self.rows,
            cols=self.columns,
            horizontal_spacing=self.gap_across / self.width,
            vertical_spacing=self.gap_down / self.height,
            **options,
        )


def _offline(figure: go.Figure) -> go.Figure:
    """Disable the upload button in the layout, so that it is absent in notebooks, pages and files."""
    return figure.update_layout(modebar={"remove": [_UPLOADS]})
