"""The explorer's page: one HTML file that holds its data, its style and its script, and needs no network."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from mechheads.explorer.encode import to_json
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.explorer.picture import picture
from mechheads.files.replacing import write_file
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
        f'<body><div id="mh-root" class="mh"><p>{_OPENING}</p>{picture(page)}</div>\n'
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
