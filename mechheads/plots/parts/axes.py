"""Axes: their frame, and those that count layers or heads."""

from __future__ import annotations

from math import floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

FRAME: dict[str, Any] = {"showline": True, "mirror": True}
"""The settings of an axis with a line around its panel."""


def count_ticks(n: int, pixels: int) -> dict[str, Any]:
    """Tick settings for an axis of ``n`` whole numbers on this many pixels, with as many labels as fit."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 40, 80, n) if n / step * 18 <= pixels)
    return {"tickmode": "array", "tickvals": list(range(0, n, step))}


def symlog(values: Any, linear: float) -> np.ndarray:
    """Values on a symmetric logarithmic axis: linear near 0, and beyond ``linear`` a decade is as long as this part.

    >>> symlog([-1.0, 0.0, 0.05, 0.1, 10.0], 0.1).tolist()
    [-2.0, 0.0, 0.5, 1.0, 3.0]
    """
    parts = np.abs(np.asarray(values, dtype=float)) / linear
    return np.sign(values) * np.where(parts <= 1, parts, 1 + np.log10(np.maximum(parts, 1)))


def warp_row(figure: go.Figure, row: int, linear: float) -> None:
    """Draw a row of panels on one symmetric logarithmic axis: its traces are moved, and its ticks name the values."""
    traces = list(figure.select_traces(row=row))
    most = max((float(np.nanmax(np.abs(trace.y))) for trace in traces if _is_drawn(trace)), default=linear)
    for trace in traces:
        if _is_drawn(trace):
            trace.y = symlog(trace.y, linear)
    powers = [linear * 10.0**i for i in range(max(0, floor(log10(max(most, linear) / linear) + 1e-9)) + 1)]
    ticks = [*(-each for each in reversed(powers)), 0.0, *powers]
    figure.update_yaxes(
        tickmode="array",
        tickvals=symlog(ticks, linear),
        ticktext=[f"{tick:g}".replace("-", "−") for tick in ticks],
        row=row,
    )


def _is_drawn(trace: Any) -> bool:
    return trace.y is not None and bool(np.isfinite(np.asarray(trace.y, dtype=float)).any())
