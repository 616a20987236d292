"""The explorer's page: one HTML file that holds its data, its style and its script, and needs no network.

Its tables stand in it for readers whose scripts are off; in a notebook that is not trusted, a picture of its map.
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

from mechheads.explorer import contract
from mechheads.explorer.contract import to_json
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.io.write import write_file
from mechheads.plots.category_map import NONE, category_colours, class_of
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


def policy() -> str:
    """What the page may do: run this script and style, and show pictures that it draws."""
    return (
        f"default-src 'none'; script-src {_hash(script())}; style-src {_hash(style())}; img-src data: blob:; "
        f"connect-src 'none'; base-uri 'none'; form-action 'none'"
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
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy())}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{html.escape(page['title'])}</title>\n<style>{style()}</style></head>\n"
        f'<body><div id="mh-root" class="mh"><p>{_OPENING}</p>{answer(page)}</div>\n'
        f'<script type="application/json" id="mh-page">{to_json(page)}</script>\n{blocks}\n'
        f'<script type="module">{script()}</script>\n</body></html>\n'
    )


def write_page(atlas: Atlas, path: str | Path) -> Path:
    """Write the explorer of an atlas to one HTML file, completely or not at all."""
    return write(atlas_payload(atlas, folder=Path(path).parent), path)


def write(payload: Payload, path: str | Path) -> Path:
    """Write a page to a file, completely or not at all."""
    return write_file(Path(path), page_html(payload).encode("utf-8", "replace"))


def _static(name: str) -> str:
    return (files("mechheads.explorer") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


_CELL, _GAP, _LEFT, _BELOW, _KEY = 18, 1, 30, 26, 92
_NOT_MEASURED, _EDGE, _INK, _PAPER = "#ffffff", "#aaaaaa", "#666666", "#ffffff"
_PALE, _DARK = (0xE3, 0xEB, 0xF7), (0x08, 0x30, 0x6B)
"""The ends of the scale of a column, in red, green and blue."""
_ZERO, _MOST, _LEAST = (238, 240, 242), (178, 24, 43), (33, 102, 172)
"""The same of 0 and of both ends of a scale of signed values."""
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


def answer(page: contract.Page) -> str:
    """The rows of each question as HTML tables, for readers whose scripts are off."""
    made = []
    for question in page["model"]["questions"]:
        varies = f" ({question['varies']})" if question["varies"] else ""
        made.append(f"<h3>{_escaped(question['title'] + varies)}</h3>")
        cells = [_cells(row) for row in question["rows"]]
        made.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>" if cells else "")
        made += [f"<p>{_escaped(warning)}</p>" for warning in question["warnings"]]
    return "".join(made)


def _cells(row: contract.Row) -> str:
    """The cells of a row: head, what was measured, value and interval."""
    interval = "" if row["low"] is None or row["high"] is None else f"[{row['low']:.3g}, {row['high']:.3g}]"
    value = "" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"
    return "".join(f"<td>{_escaped(text)}</td>" for text in (row["head"], row["measured"], value, interval))


def _escaped(text: str) -> str:
    return html.escape(_printable(text))


def png(page: contract.Page) -> bytes:
    """The heads of a page, layers across and heads up, by category or a column, as a PNG."""
    image_module, draw_module, font_module = (
        importlib.import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
    )
    width, height, squares, labels = drawing(page)
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


def shown_width(page: contract.Page) -> int:
    """How wide the picture is shown, in pixels of a page."""
    return drawing(page).width


def alt_text(page: contract.Page) -> str:
    """What the picture shows, and the five heads with the largest values of the first score."""
    column = _coloured_by(page)
    shown = "" if column is None else f" {_printable(column['label'])}: {_largest(page['model'], column['values'])}."
    return f"{_printable(page['title'])}: layers across, heads up.{shown}"


def drawing(page: contract.Page) -> _Drawing:
    """The squares and labels of the picture of a page."""
    model = page["model"]
    n_layers, n_heads = model["nLayers"], model["nHeads"]
    fills, keys = _fills(page)
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


def _fills(page: contract.Page) -> tuple[list[str], list[tuple[str, str]]]:
    """The colour of every head, and what it is: a category or a number of them, or else the value of one column."""
    model = page["model"]
    if (categories := model["categories"]) is not None and (names := categories["names"]):
        colours = category_colours(names)
        called = [None if mine is None else [names[i] for i in mine] for mine in categories["of"]]
        classes = [None if mine is None else class_of(mine) for mine in called]
        several = sorted({each for each in classes if each} - {*names, NONE})
        fills = [_NOT_MEASURED if each is None else colours[each] for each in classes]
        return fills, [*((each, colours[each]) for each in [*names, *several]), ("none", colours[NONE])]
    column = _coloured_by(page)
    values: list[Any] = [] if column is None else column["values"]
    known = [value for value in values if value is not None]
    if column is None or not known:
        return [_NOT_MEASURED] * (model["nLayers"] * model["nHeads"]), []
    most = max(map(abs, known)) or 1.0
    least = -most if column["signed"] else min(known)
    most = most if column["signed"] else max(known)

    def shade(value: float) -> str:
        if column["signed"]:
            return _mixed(_ZERO, _MOST if value > 0 else _LEAST, abs(value) / most)
        return _mixed(_PALE, _DARK, (value - least) / (most - least or 1.0))

    keys = [(f"{value:.2g}", shade(value)) for value in (least, 0.0, most) if column["signed"] or value != 0.0]
    return [_NOT_MEASURED if value is None else shade(value) for value in values], keys


def _mixed(start: Sequence[int], end: Sequence[int], share: float) -> str:
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in zip(start, end, strict=True))


def _coloured_by(page: contract.Page) -> contract.Column | None:
    """The column of numbers by which the page colours the map at first: that of the first view."""
    model = page["model"]
    name = next((name for question in model["questions"] for name in question["views"]), None)
    return next((column for column in model["columns"] if column["name"] == name), None)


def _largest(model: contract.Model, values: list[Any]) -> str:
    order = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: -abs(values[i]))
    return ", ".join(f"L{i // model['nHeads']}H{i % model['nHeads']} {values[i]:.2g}" for i in order[:5])


def _printable(text: str) -> str:
    """A text without control characters and marks of direction."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
