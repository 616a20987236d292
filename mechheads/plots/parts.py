"""Shared parts of figures: panels, axes, texts, colours, themes, and files (PDF, SVG, PNG, HTML).

No figure has plotly's button that uploads its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mechheads.io.write import write_file
from mechheads.messages.arguments import check_known, checked

if TYPE_CHECKING:
    import plotly.graph_objects as go


def figure_of(traces: Iterable[Any] = ()) -> go.Figure:
    """A figure of one panel with these traces."""
    import plotly.graph_objects as go

    return go.Figure(list(traces))


@dataclass(frozen=True)
class Panels:
    """Panels of one size in rows and columns; lengths are in pixels."""

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
        """A figure with these panels, empty; ``options`` go to ``make_subplots``."""
        from plotly.subplots import make_subplots

        return make_subplots(
            rows=self.rows,
            cols=self.columns,
            horizontal_spacing=self.gap_across / self.width,
            vertical_spacing=self.gap_down / self.height,
            **options,
        )


FRAME: dict[str, Any] = {"showline": True, "mirror": True}
"""The settings of an axis with a line around its panel."""


def count_ticks(n: int, pixels: int) -> dict[str, Any]:
    """Tick settings for an axis of ``n`` whole numbers on this many pixels, with as many labels as fit."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 40, 80, n) if n / step * 18 <= pixels)
    return {"tickmode": "array", "tickvals": list(range(0, n, step))}


def symlog(values: Any, linear: float) -> np.ndarray:
    """Values on a symmetric logarithmic axis: linear near 0, and beyond ``linear`` a decade is as long as this part."""
    parts = np.abs(np.asarray(values, dtype=float)) / linear
    return np.sign(values) * np.where(parts <= 1, parts, 1 + np.log10(np.maximum(parts, 1)))


def warp_row(figure: go.Figure, row: int, linear: float) -> None:
    """Draw a row of panels on one symmetric logarithmic axis: its traces are moved, and its ticks name the values."""
    traces: list[Any] = list(figure.select_traces(row=row))
    most = max((float(np.nanmax(np.abs(trace.y))) for trace in traces if _is_drawn(trace)), default=linear)
    for trace in traces:
        if _is_drawn(trace):
            trace.y = symlog(trace.y, linear)
    powers = [linear * 10.0**i for i in range(max(0, floor(log10(max(most, linear) / linear) + 1e-9)) + 1)]
    ticks = [*(-each for each in reversed(powers)), 0.0, *powers]
    figure.update_yaxes(
        tickmode="array",
        tickvals=symlog(ticks, linear),
        ticktext=[f"{tick:g}".replace("-", "−") for tick in ticks],
        row=row,
    )


def _is_drawn(trace: Any) -> bool:
    return trace.y is not None and bool(np.isfinite(np.asarray(trace.y, dtype=float)).any())


SIGNED = ("#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b")
"""From negative (blue) over 0 to positive (red)."""
MISSING = "#d0d0d0"
"""The background that shows where a heatmap has no score."""


def heat_trace(z: np.ndarray, x: Any, y: Any, text: Any, gap: float, **more: Any) -> go.Heatmap:
    """Cells with hover texts, coloured by the figure's colour axis; ``gap`` is the width of the lines between them."""
    import plotly.graph_objects as go

    more = {"coloraxis": "coloraxis"} | more
    return go.Heatmap(
        z=z, x=x, y=y, text=text, hovertemplate="%{text}<extra></extra>", hoverongaps=False, xgap=gap, ygap=gap, **more
    )


def colour_axis(colours: Sequence[str], low: float, high: float, title: str, **bar: Any) -> dict[str, Any]:
    """Plotly's settings of a scale of colours from one value to another; ``bar`` are further settings of its bar."""
    colorbar = {"title": {"text": title}, "thickness": 14, **bar}
    scale = [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]  # of equal steps
    return {"colorscale": scale, "cmin": low, "cmax": high, "colorbar": colorbar}


_SPACES = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"})


def plain(text: object) -> str:
    """Text escaped so that plotly shows it literally, without tags, entities and formulas."""
    return escape(str(text), quote=False).replace("$", "&#36;")


def figure_title(title: str) -> dict[str, Any]:
    """Plotly's settings of a figure's title."""
    return {"text": plain(title), "x": 0.01, "xanchor": "left"}


def interval(low: float, high: float, form: str = ".2f") -> str:
    """An interval to follow a number; empty if there is none."""
    return f" [{low:{form}}, {high:{form}}]" if isfinite(low) and isfinite(high) else ""


def p_texts(p_family: float, q: float) -> list[str]:
    """The family p and the q value of a head as texts, if they were computed."""
    return [f"{name} = {value:.3g}" for name, value in (("family p", p_family), ("q", q)) if isfinite(value)]


def token_label(token: str, longest: int = 24) -> str:
    """A token with its whitespace made visible, cut to ``longest`` characters, safe for plotly."""
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in token.translate(_SPACES))
    if len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    return plain(shown) or "(empty)"


Theme = Literal["light", "dark"]

_PAGES = {
    "light": ("plotly", {"page": "white", "text": "#222222", "frame": "#888888", "grid": "#e8e8e8"}),
    "dark": ("plotly_dark", {"page": "#16181d", "text": "#e6e8eb", "frame": "#7b818b", "grid": "#31353d"}),
}
"""Plotly's template that each theme begins with, and the colours of the page."""
_DARK = {
    "white": "#16181d",
    "#f7f7f7": "#2b2e35",
    "#222222": "#e6e8eb",
    "#444444": "#c9cdd3",
    "#777777": "#a5abb4",
    "#6b6b6b": "#a5abb4",
    "#d0d0d0": "#454a53",
    "#d9d9d9": "#3d414a",
    "#000000": "#ffffff",
    # from negative to positive: the middle is dark, the ends are light
    "#2166ac": "#9ecbf5",
    "#67a9cf": "#5d9bd8",
    "#d1e5f0": "#33557a",
    "#fddbc7": "#7a4234",
    "#ef8a62": "#dd7a58",
    "#b2182b": "#fab39b",
    # attention
    "#f1f6fc": "#1d2733",
    "#c6dbef": "#264463",
    "#6baed6": "#2f74ab",
    "#2171b5": "#74b4e6",
    "#08306b": "#dcecfb",
    # Generalized Ships
    "#5c1a6b": "#7a4a9c",
    "#b3305f": "#b3478d",
    "#f4873f": "#f4904a",
    "#f5c542": "#fad86c",
    # lines, points and categories that are too dark on a dark page
    "#1f77b4": "#5aa9e6",
    "#1b7837": "#57c07a",
    "#762a83": "#c58bd3",
    "#5b4a9e": "#a99be8",
    "#8a5a00": "#d9a441",
    "#8c564b": "#b98579",
    "#1f6fb4": "#5aa9e6",
    "#be8c00": "#e0b43c",
    "#c53030": "#f06e64",
    "rgba(178, 24, 43, 0.13)": "rgba(250, 179, 155, 0.18)",
    "rgba(107, 107, 107, 0.22)": "rgba(165, 171, 180, 0.22)",
}
"""The dark colour in place of each light one that is drawn; colours that are not here are the same in both."""


def themed(figure: go.Figure, theme: Theme) -> go.Figure:
    """The figure with the template ``mechheads_light`` or ``mechheads_dark`` and its colours, changed in place.
    The layout has no upload button, so that it is absent in notebooks, pages and files."""
    check_known("theme", theme, Theme)
    figure.update_layout(template=_template(theme), modebar={"remove": ["sendChartToCloud"]})
    if theme == "dark":
        layout = figure.layout.to_plotly_json()
        del layout["template"]
        figure.update_layout(_darkened(layout))
        traces: Any = figure.data
        for trace in traces:
            trace.update(_darkened(trace.to_plotly_json()))
    return figure


def _template(theme: Theme) -> str:
    """The name of a theme's template, which is registered but not made the default."""
    import plotly.graph_objects as go
    from plotly.io import templates

    name = f"mechheads_{theme}"
    if name not in templates:
        base, colours = _PAGES[theme]
        template = go.layout.Template(templates[base])
        axis = {"showgrid": False, "zeroline": False, "linecolor": colours["frame"]}
        axis |= {"gridcolor": colours["grid"], "zerolinecolor": colours["grid"]}
        layout: Any = template.layout
        layout.update(
            paper_bgcolor=colours["page"],
            plot_bgcolor=colours["page"],
            font_color=colours["text"],
            xaxis=axis,
            yaxis=axis,
        )
        templates[name] = template
    return name


def _darkened(part: Any, name: str = "") -> Any:
    """The dark colours for a part of a figure; only values whose key names a colour change: a token may be "white"."""
    if isinstance(part, dict):
        parts = {key: _darkened(value, key) for key, value in part.items()}
        return {key: value for key, value in parts.items() if value is not None and value != {}}
    if isinstance(part, (list, tuple)) and part and isinstance(part[0], dict):
        return [_darkened(value, name) for value in part]
    if not name.endswith(("color", "colorscale")):
        return None
    if isinstance(part, (list, tuple)):
        return [_darkened(each, name) if isinstance(each, (list, tuple)) else _DARK.get(each, each) for each in part]
    return _DARK.get(part) if isinstance(part, str) else None


@checked
def save(figure: go.Figure, path: str | Path, *, scale: float = 2) -> Path:
    """Save a figure to a file, completely or not at all, in its own size.

    Args:
        figure: from any function of ``mh.plots``, or any other plotly figure.
        path: the file; it ends in ``.pdf``, ``.svg``, ``.png`` or ``.html``. An HTML file needs no network.
        scale: the pixels of a PNG for each pixel of the figure; 3 or 4 for print.

    Returns:
        The path.

    Raises:
        ValueError: if the path ends in something else, or ``scale`` is not above 0.
        RuntimeError: if kaleido is not installed, or there is no Chrome or Chromium; plotly says how to get them. HTML
            needs neither.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> figure = mh.plots.heatmap(mh.HeadScores.from_scores(np.eye(3), name="demo", kind="demo"))
    >>> mh.plots.save(figure, Path(tempfile.mkdtemp()) / "demo.html").name
    'demo.html'
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("pdf", "svg", "png", "html"):
        raise ValueError(f"path is {str(path)!r}; it must end in .pdf, .svg, .png or .html")
    if not scale > 0:
        raise ValueError(f"scale is {scale}; it must be above 0")
    if kind == "html":
        return write_file(path, figure.to_html(config={"displaylogo": False}))
    layout: Any = figure.layout
    size = {"width": layout.width, "height": layout.height, "scale": scale if kind == "png" else 1}
    return write_file(path, figure.to_image(format=kind, **size))
