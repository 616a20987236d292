"""Escape text for plotly, which interprets tags, entities and dollar signs in labels."""

from __future__ import annotations

from html import escape

_SPACES = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"})


def plain(text: object) -> str:
    """Text escaped so that plotly shows it literally, without tags, entities and formulas.

    >>> plain("<b> & $x$")
    '&lt;b&gt; &amp; &#36;x&#36;'
    """
    return escape(str(text), quote=False).replace("$", "&#36;")


def token_label(token: str, longest: int = 24) -> str:
    """A token with its whitespace made visible, cut to ``longest`` characters, safe for plotly.

    >>> token_label(" Paris"), token_label("<br>"), token_label("")
    ('·Paris', '&lt;br&gt;', '(empty)')
    """
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in token.translate(_SPACES))
    if len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    return plain(shown) or "(empty)"
