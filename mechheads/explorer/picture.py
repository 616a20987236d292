"""A still picture of a page: the map of its first model, for readers whose scripts are off."""

from __future__ import annotations

import html
import importlib
from io import BytesIO
from typing import Any, NamedTuple

from mechheads.plots.parts.category_colours import category_colours

_CELL, _GAP, _LEFT, _BELOW, _KEY = 18, 1, 30, 26, 92
_NOT_MEASURED, _EDGE, _INK, _PAPER = "#ffffff", "#aaaaaa", "#666666", "#ffffff"
_LETTER = 10
_SHARP = 2
"""Pixels of the PNG for each unit of the drawing, so that it is sharp on a screen of high density."""


class _Square(NamedTuple):
    x: float
    y: float
    size: float
    hue: str
    edge: bool


class _Label(NamedTuple):
    x: float
    y: float
    """The line that the letters stand on."""
    text: str
    centred: bool


class _Drawing(NamedTuple):
    width: int
    height: int
    squares: list[_Square]
    labels: list[_Label]


def picture(page: dict[str, Any]) -> str:
    """An SVG of the heads of the first model of a page, layers across and heads up, by category, with its words."""
    width, height, squares, labels = _drawing(page)
    drawn = "".join(
        f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}" fill="{hue}"'
        + (f' stroke="{_EDGE}" stroke-width="0.5"/>' if edge else "/>")
        for x, y, size, hue, edge in squares
    )
    written = "".join(
        f'<text x="{x:g}" y="{y:g}" font-size="{_LETTER}" text-anchor="{"middle" if centred else "start"}" '
        f'fill="{_INK}">{html.escape(text)}</text>'
        for x, y, text, centred in labels
    )
    said = html.escape(words(page))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}"><title>{said}</title>{drawn}{written}</svg>'
    )


def png(page: dict[str, Any]) -> bytes:
    """The same as a PNG, for readers that drop every SVG, as a notebook that is not trusted does.

    Raises:
        ImportError: if Pillow is not installed.
    """
    image_module, draw_module, font_module = (
        importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
    )
    width, height, squares, labels = _drawing(page)
    image = image_module.new("RGB", (width * _SHARP, height * _SHARP), _PAPER)
    draw = draw_module.Draw(image)
    font = font_module.load_default(_LETTER * _SHARP)
    for x, y, size, hue, edge in squares:
        corners = [x * _SHARP, y * _SHARP, (x + size) * _SHARP, (y + size) * _SHARP]
        draw.rectangle(corners, fill=hue, outline=_EDGE if edge else None)
    for x, y, text, centred in labels:
        draw.text((x * _SHARP, y * _SHARP), text, fill=_INK, font=font, anchor="ms" if centred else "ls")
    written = BytesIO()
    image.save(written, "PNG", optimize=True)
    return written.getvalue()


def shown_width(page: dict[str, Any]) -> int:
    """How wide the picture is shown, in pixels of a page."""
    return _drawing(page).width


def words(page: dict[str, Any]) -> str:
    """What the picture shows: how many heads have each category, and which have the largest effect."""
    model = page["models"][0]
    names, of = _categories(model)
    return f"{_seen(page['title'])}: layers across, heads up. {_counts(names, of)}{_strongest(model)}"


def _drawing(page: dict[str, Any]) -> _Drawing:
    model = page["models"][0]
    n_layers, n_heads = model["nLayers"], model["nHeads"]
    names, of = _categories(model)
    colours = category_colours(names, {})
    several, none = colours["2 categories"], colours["Unclassified"]
    hues = [colours[name] for name in names]
    keys = [*zip(names, hues, strict=True), ("several", several), ("none", none)] if names else []

    def fill(mine: list[int] | None) -> str:
        if mine is None:
            return _NOT_MEASURED
        return none if not mine else several if len(mine) > 1 else hues[mine[0]]

    width, height = max(_LEFT + n_layers * _CELL, _KEY * len(keys)), n_heads * _CELL + _BELOW * (1 + bool(keys))
    squares = [
        _Square(
            _LEFT + layer * _CELL, (n_heads - 1 - head) * _CELL, _CELL - _GAP, fill(of[layer * n_heads + head]), True
        )
        for layer in range(n_layers)
        for head in range(n_heads)
    ]
    labels = [
        _Label(_LEFT + (layer + 0.5) * _CELL, n_heads * _CELL + 14, str(layer), True)
        for layer in range(0, n_layers, max(1, n_layers // 16))
    ]
    labels += [_Label(_LEFT / 2, (n_heads - 0.5 - head) * _CELL + 4, str(head), True) for head in range(n_heads)]
    for i, (name, hue) in enumerate(keys):
        squares.append(_Square(_KEY * i + 2, height - 14, 10, hue, False))
        labels.append(_Label(_KEY * i + 16, height - 5, _seen(name)[:14], False))
    return _Drawing(width, height, squares, labels)


def _categories(model: dict[str, Any]) -> tuple[list[str], list[list[int] | None]]:
    categories = model["categories"]
    if categories is None:
        return [], [None] * (model["nLayers"] * model["nHeads"])
    return categories["names"], categories["of"]


def _seen(text: str) -> str:
    """A text without control characters and marks of direction."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _counts(names: list[str], of: list[list[int] | None]) -> str:
    counts = [sum(number in (each or ()) for each in of) for number in range(len(names))]
    return "".join(f"{_seen(name)}: {count} heads. " for name, count in zip(names, counts, strict=True))


def _strongest(model: dict[str, Any]) -> str:
    """The five heads that are the first by patching."""
    values = next((column["values"] for column in model["columns"] if column["name"] == "patching"), [])
    order = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: -abs(values[i]))
    named = [f"L{i // model['nHeads']}H{i % model['nHeads']} {values[i]:.2g}" for i in order[:5]]
    return f"The largest patching effects: {', '.join(named)}." if named else ""
