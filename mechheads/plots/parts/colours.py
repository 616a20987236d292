"""Colours and colour scales of several figures."""

from __future__ import annotations

from collections.abc import Sequence

SIGNED = ("#2166ac", "#67a9cf", "#d1e5f0", "#f7f7f7", "#fddbc7", "#ef8a62", "#b2182b")
"""From negative (blue) over 0 to positive (red)."""
MISSING = "#d0d0d0"
"""The background that shows where a heatmap has no score."""


def colour_scale(colours: Sequence[str]) -> list[list[float | str]]:
    """Plotly's scale of equal steps from colour to colour.

    >>> colour_scale(["white", "grey", "black"])
    [[0.0, 'white'], [0.5, 'grey'], [1.0, 'black']]
    """
    return [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]
