"""Text of figures, escaped for plotly, which interprets tags, entities and dollar signs in labels."""

from __future__ import annotations

from html import escape
from math import isfinite
from typing import Any

_SPACES = str.maketrans({" ": "·", "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽"})


def plain(text: object) -> str:
    """Text escaped so that plotly shows it literally, without tags, entities and formulas.

    >>> plain("<b> & $x$")
    '&lt;b&gt; &amp; &#36;x&#36;'
    """
    return escape(str(text), quote=False).replace("$", "&#36;")


def figure_title(title: str) -> dict[str, Any]:
    """Plotly's settings of a figure's title."""
    return {"text": plain(title), "x": 0.01, "xanchor": "left"}


def interval(low: float, high: float, form: str = ".2f") -> str:
    """An interval to follow a number; empty if there is none.

    >>> interval(0.25, 0.75), interval(float("nan"), float("nan"))
    (' [0.25, 0.75]', '')
    """
    return f" [{low:{form}}, {high:{form}}]" if isfinite(low) and isfinite(high) else ""


def level_name(level: float | None) -> str:
    """An interval of this level in words: ``95% interval``, or ``interval`` if the level is not known."""
    return "interval" if level is None else f"{100 * level:g}% interval"


def token_label(token: str, longest: int = 24) -> str:
    """A token with its whitespace made visible, cut to ``longest`` characters, safe for plotly.

    >>> token_label(" Paris"), token_label("<br>"), token_label("")
    ('·Paris', '&lt;br&gt;', '(empty)')
    """
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in token.translate(_SPACES))
    if len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    return plain(shown) or "(empty)"
