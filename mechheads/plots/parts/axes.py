"""Axes: their frame, and those that count layers or heads."""

from __future__ import annotations

from typing import Any

FRAME: dict[str, Any] = {"showline": True, "linecolor": "#888888", "mirror": True}
"""The settings of an axis with a line around its panel."""


def count_ticks(n: int, pixels: int) -> dict[str, Any]:
    """Tick settings for an axis of ``n`` whole numbers on this many pixels, with as many labels as fit."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 40, 80, n) if n / step * 18 <= pixels)
    return {"tickmode": "array", "tickvals": list(range(0, n, step)), "showgrid": False, "zeroline": False}
