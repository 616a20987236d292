"""The explorer's page: one HTML file with its data, style and script, which needs no network.

It also has its tables as HTML, for readers whose scripts are off.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from mechheads.explorer import contract
from mechheads.explorer.contract import to_json
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.io.write import write_file
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
    """The content security policy: the page may run this script and style, and show pictures that it draws."""
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


def answer(page: contract.Page) -> str:
    """The rows of each question as HTML tables, for readers whose scripts are off."""
    parts = []
    for question in page["model"]["questions"]:
        varies = f" ({question['varies']})" if question["varies"] else ""
        parts.append(f"<h3>{_escaped(question['title'] + varies)}</h3>")
        cells = [_cells(row) for row in question["rows"]]
        parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>" if cells else "")
        parts += [f"<p>{_escaped(warning)}</p>" for warning in question["warnings"]]
    return "".join(parts)


def _cells(row: contract.Row) -> str:
    """The cells of a row: head, what was measured, value and interval."""
    interval = "" if row["low"] is None or row["high"] is None else f"[{row['low']:.3g}, {row['high']:.3g}]"
    value = "" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"
    return "".join(f"<td>{_escaped(text)}</td>" for text in (row["head"], row["measured"], value, interval))


def _escaped(text: str) -> str:
    """The text for HTML, without control characters and marks of direction."""
    return html.escape("".join(letter if letter.isprintable() else "\ufffd" for letter in text))
