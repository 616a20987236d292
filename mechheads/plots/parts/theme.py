"""The themes of figures, for light and for dark pages. Every public figure ends here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
    "#8a8a8a": "#a5abb4",
    "#6b6b6b": "#a5abb4",
    "#bbbbbb": "#6d737d",
    "#c8c8c8": "#6d737d",
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
    "#f5c542": "#7a4a9c",
    "#f4873f": "#b3478d",
    "#b3305f": "#f4904a",
    "#5c1a6b": "#fad86c",
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

    Raises:
        ValueError: if the theme is unknown.
    """
    if theme not in _PAGES:
        raise ValueError(f"theme is {theme!r}; it must be 'light' or 'dark'")
    figure.update_layout(template=_template(theme))
    if theme == "dark":
        layout = figure.layout.to_plotly_json()
        del layout["template"]
        figure.update_layout(_darkened(layout))
        for trace in figure.data:
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
    """What has to change of a part of a figure; only what its name says is a colour: a token may be "white"."""
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
