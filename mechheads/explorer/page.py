"""The explorer's page: one HTML file that holds its data, its style and its script, and needs no network.

A still picture, the map of the first model, stands in it for readers whose scripts are off.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from mechheads.explorer.encode import to_json
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.files.replacing import write_file
from mechheads.plots.category_map import category_colours
from mechheads.studies.atlas import Atlas

_OPENING = "The page is being opened. It needs JavaScript, and a browser of 2023 or later."


@cache
def script() -> str:
    """The one script, an ES module; ``static/explorer.js``."""
    return re.sub(r"<(?=/script|!--)", r"\\x3c", _static("explorer.js"), flags=re.IGNORECASE)


@cache
def style() -> str:
    """The one style sheet; ``static/explorer.css``."""
    return _static("explorer.css")


def policy(live: bool) -> str:
    """What the page may do: run this script and style, show pictures that it draws, and ask its own server only."""
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {_hash(script())}; style-src {_hash(style())}; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def page_html(payload: Payload) -> str:
    """The whole page."""
    page = payload.page
    blocks = "\n".join(
        f'<script type="application/octet-stream;base64" id="{name}">{content}</script>'
        for name, content in payload.blocks.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(page["live"] is not None))}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(page['title'])}</title>\n<style>{style()}</style></head>\n"
        f'<body><div id="mh-root" class="mh"><p>{_OPENING}</p>{svg(page)}</div>\n'
        f'<script type="application/json" id="mh-page">{to_json(page)}</script>\n{blocks}\n'
        f'<script type="module">{script()}</script>\n</body></html>\n'
    )


def write_page(atlas: Atlas | Sequence[Atlas], path: str | Path) -> Path:
    """Write the explorer of one or several atlases to one HTML file, completely or not at all.

    Args:
        atlas: from ``mh.build_atlas`` or ``mh.studies.Atlas.load``, or several of these.
        path: the file, such as ``"atlas/index.html"``; its folder must exist.

    Returns:
        The path.
    """
    return write(atlas_payload([atlas] if isinstance(atlas, Atlas) else atlas), path)


def write(payload: Payload, path: str | Path) -> Path:
    """Write a page to a file, completely or not at all."""
    return write_file(Path(path), page_html(payload).encode("utf-8", "replace"))


def _static(name: str) -> str:
    return (files("mechheads.explorer") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


_CELL, _GAP, _LEFT, _BELOW, _KEY = 18, 1, 30, 26, 92
_NOT_MEASURED, _EDGE, _INK, _PAPER = "#ffffff", "#aaaaaa", "#666666", "#ffffff"
_ZERO, _MOST, _LEAST = (238, 240, 242), (178, 24, 43), (33, 102, 172)
"""Red, green and blue of 0 and of both ends of a scale."""
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


def svg(page: dict[str, Any]) -> str:
    """An SVG of the heads of the first model of a page, layers across and heads up, by category or the first view."""
    width, height, squares, labels = _drawing(page)
    drawn = "".join(
        f'<rect x="{x:g}" y="{y:g}" width="{size:g}" height="{size:g}" fill="{hue}"'
        + (f' stroke="{_EDGE}" stroke-width="0.5"/>' if edge else "/>")
        for x, y, size, hue, edge in squares
    )
    written = "".join(
        f'<text x="{x:g}" y="{y:g}" font-size="{_LETTER}" text-anchor="{"middle" if centred else "start"}" '
        f'fill="{_INK}">{html.escape(label)}</text>'
        for x, y, label, centred in labels
    )
    text = html.escape(alt_text(page))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{text}"><title>{text}</title>{drawn}{written}</svg>'
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


def alt_text(page: dict[str, Any]) -> str:
    """What the picture shows: how many heads have each category, and which have the largest effect."""
    model = page["models"][0]
    names, of = _categories(model)
    return f"{_printable(page['title'])}: layers across, heads up. {_counts(names, of)}{_strongest(model)}"


def _drawing(page: dict[str, Any]) -> _Drawing:
    model = page["models"][0]
    n_layers, n_heads = model["nLayers"], model["nHeads"]
    fills, keys = _fills(model)
    width, height = max(_LEFT + n_layers * _CELL, _KEY * len(keys)), n_heads * _CELL + _BELOW * (1 + bool(keys))
    squares = [
        _Square(_LEFT + layer * _CELL, (n_heads - 1 - head) * _CELL, _CELL - _GAP, fills[layer * n_heads + head], True)
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
        labels.append(_Label(_KEY * i + 16, height - 5, _printable(name)[:14], False))
    return _Drawing(width, height, squares, labels)


def _fills(model: dict[str, Any]) -> tuple[list[str], list[tuple[str, str]]]:
    """The colour of every head, and what the colours are: categories, or else the values of the first view."""
    names, of = _categories(model)
    colours = category_colours(names, {})
    several, none = colours["2 categories"], colours["Unclassified"]
    hues = [colours[name] for name in names]

    def fill(mine: list[int] | None) -> str:
        if mine is None:
            return _NOT_MEASURED
        return none if not mine else several if len(mine) > 1 else hues[mine[0]]

    if names or not model["views"]:
        keys = [*zip(names, hues, strict=True), ("several", several), ("none", none)] if names else []
        return [fill(mine) for mine in of], keys
    values = _values(model, model["views"][0]["value"])
    most = max((abs(value) for value in values if value is not None), default=0.0) or 1.0
    fills = [_NOT_MEASURED if value is None else _shade(value / most) for value in values]
    return fills, [(f"-{most:.2g}", _shade(-1.0)), ("0", _shade(0.0)), (f"{most:.2g}", _shade(1.0))]


def _shade(share: float) -> str:
    """A colour between that of 0 and the end of a scale, which is -1 or 1."""
    end = _MOST if share > 0 else _LEAST
    mixed = (round(zero + abs(share) * (to - zero)) for zero, to in zip(_ZERO, end, strict=True))
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def _values(model: dict[str, Any], name: str) -> list[Any]:
    """The values of a column; none if there is no such column."""
    return next((column["values"] for column in model["columns"] if column["name"] == name), [])


def _categories(model: dict[str, Any]) -> tuple[list[str], list[list[int] | None]]:
    categories = model["categories"]
    if categories is None:
        return [], [None] * (model["nLayers"] * model["nHeads"])
    return categories["names"], categories["of"]


def _printable(text: str) -> str:
    """A text without control characters and marks of direction."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _counts(names: list[str], of: list[list[int] | None]) -> str:
    counts = [sum(number in (each or ()) for each in of) for number in range(len(names))]
    return "".join(f"{_printable(name)}: {count} heads. " for name, count in zip(names, counts, strict=True))


def _strongest(model: dict[str, Any]) -> str:
    """The five heads that are the first by patching, or else by the first view."""
    (view,) = [view for view in model["views"] if view["name"] == "patching"][:1] or model["views"][:1] or [None]
    if view is None:
        return ""
    values = _values(model, view["value"])
    order = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: -abs(values[i]))
    named = [f"L{i // model['nHeads']}H{i % model['nHeads']} {values[i]:.2g}" for i in order[:5]]
    what = "patching effects" if view["name"] == "patching" else f"values of {_printable(view['title'])}"
    return f"The largest {what}: {', '.join(named)}." if named else ""
