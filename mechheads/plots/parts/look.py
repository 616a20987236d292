"""The look of a figure: its size, its font, and colours for a light or a dark page. Every public figure ends here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from mechheads.plots.parts.resize import resize

if TYPE_CHECKING:
    import plotly.graph_objects as go

Theme = Literal["light", "dark"]
Font = str | float | Mapping[str, Any]

_SIZE = 12
"""The font size in pixels that figures are made for."""
_DARK = {
    "white": "#16181d",
    "#f7f7f7": "#2b2e35",
    "#222222": "#e6e8eb",
    "#444444": "#c9cdd3",
    "#777777": "#a5abb4",
    "#8a8a8a": "#a5abb4",
    "#6b6b6b": "#a5abb4",
    "#888888": "#7b818b",
    "#bbbbbb": "#6d737d",
    "#c8c8c8": "#6d737d",
    "#d0d0d0": "#454a53",
    "#d9d9d9": "#3d414a",
    "#dddddd": "#454a53",
    "#e8e8e8": "#31353d",
    "#eeeeee": "#31353d",
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
    "rgb(31, 111, 180)": "rgb(90, 169, 230)",
    "rgb(190, 140, 0)": "rgb(224, 180, 60)",
    "rgb(197, 48, 48)": "rgb(240, 110, 100)",
    "rgba(178, 24, 43, 0.13)": "rgba(250, 179, 155, 0.18)",
    "rgba(107, 107, 107, 0.22)": "rgba(165, 171, 180, 0.22)",
}
"""The dark colour in place of each light one; colours that are not here are the same in both."""


def finish(
    figure: go.Figure, *, width: float | None, height: float | None, font: Font | None, theme: Theme
) -> go.Figure:
    """The figure in a given look, changed in place.

    Args:
        width, height: of the whole figure in pixels; by default as large as its contents need.
        font: a family such as ``"Times New Roman"``, a size in pixels, or a mapping with ``family``, ``size`` or both.
            Titles and labels keep their proportions.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if the theme is unknown, the font is no family or size, or no room is left for the panels.
    """
    if theme not in ("light", "dark"):
        raise ValueError(f"theme is {theme!r}; it must be 'light' or 'dark'")
    chosen = _font(font)
    figure.update_layout(paper_bgcolor="white", font={"color": "#222222"})
    if width is not None:
        resize(figure, "width", width)
    if height is not None:
        resize(figure, "height", height)
    if "size" in chosen:
        _restyle(figure, _scaled(chosen["size"] / _SIZE))
        figure.update_layout(font_size=chosen["size"])
    if "family" in chosen:
        figure.update_layout(font_family=chosen["family"])
    if theme == "dark":
        figure.update_layout(template="plotly_dark")
        _restyle(figure, _darkened)
    return figure


def _font(font: Font | None) -> dict[str, Any]:
    given = font
    if font is None:
        return {}
    if isinstance(font, str):
        font = {"family": font}
    elif not isinstance(font, Mapping):
        font = {"size": font}
    size = font.get("size", _SIZE)
    is_size = isinstance(size, (int, float)) and not isinstance(size, bool) and 1 <= size <= 100
    if font and font.keys() <= {"family", "size"} and is_size and isinstance(font.get("family", ""), str):
        return dict(font)
    raise ValueError(
        f"font is {given!r}; give a family such as 'Times New Roman', a size in pixels from 1 to 100, or both as "
        "{'family': 'Times New Roman', 'size': 14}"
    )


def _restyle(figure: go.Figure, change: Any) -> None:
    """Change colours or font sizes wherever they are, in the layout and in every trace."""
    layout = figure.layout.to_plotly_json()
    layout.pop("template", None)
    figure.update_layout(_changed(layout, "", change))
    for trace in figure.data:
        trace.update(_changed(trace.to_plotly_json(), "", change))


def _changed(value: Any, name: str, change: Any) -> Any:
    """What has to change of a part of a figure; dicts hold changed entries only."""
    if isinstance(value, dict):
        parts = {key: _changed(part, f"{name}.{key}", change) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None and part != {}}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        return [_changed(part, name, change) for part in value]
    return change(name.rpartition(".")[2], name, value)


def _darkened(name: str, _: str, value: Any) -> Any:
    """The dark colour of a light one, or of several; None if it stays."""
    if not name.endswith(("color", "colorscale")):
        return None
    if isinstance(value, str):
        return _DARK.get(value)
    if isinstance(value, (list, tuple)):
        return [
            [each[0], _DARK.get(each[1], each[1])] if isinstance(each, (list, tuple)) else _DARK.get(each, each)
            for each in value
        ]
    return None


def _scaled(ratio: float) -> Any:
    """Font sizes that a figure sets itself, times a ratio."""

    def change(name: str, whole: str, value: Any) -> Any:
        return value * ratio if name == "size" and "font" in whole and isinstance(value, (int, float)) else None

    return change
