"""Change the size of a figure: its panels grow or shrink, all else keeps its pixels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import plotly.graph_objects as go

Side = Literal["width", "height"]

_LEAST = 60
"""The least width and height of the panels together, in pixels."""
_LABEL = 17
"""The room that a label on an axis needs, in pixels."""


def inner(figure: go.Figure, side: Side) -> float:
    """The width or height of all panels with the gaps between them, in pixels."""
    layout: Any = figure.layout
    return layout[side] - sum(layout.margin[margin] for margin in (("l", "r") if side == "width" else ("t", "b")))


def resize(figure: go.Figure, side: Side, pixels: float) -> None:
    """Give a figure another width or height. Margins, gaps between panels and what lies above them keep their pixels.

    Raises:
        ValueError: if no room is left for the panels.
    """
    layout: Any = figure.layout
    axes: list[Any] = [*(figure.select_xaxes() if side == "width" else figure.select_yaxes())]
    before = inner(figure, side)
    panels = sorted({_domain(axis) for axis in axes})
    gaps = [before * (after[0] - one[1]) for one, after in pairwise(panels)]
    rest = layout[side] - before + sum(gaps)
    if not pixels >= rest + _LEAST:
        raise ValueError(
            f"{side} is {pixels}; the labels and the legend take {ceil(rest)} pixels, so it must be at least "
            f"{ceil(rest + _LEAST)}"
        )
    layout[side] = pixels
    now = inner(figure, side)
    ratio = (now - sum(gaps)) / (before - sum(gaps))
    sizes = [
        part for panel, gap in zip(panels, [*gaps, 0.0], strict=True) for part in (_size(panel) * before * ratio, gap)
    ]
    new = np.array(list(accumulate(sizes, initial=0.0))[:-1]) / now
    old = [end for panel in panels for end in panel]

    def moved(place: float) -> float:
        """Where a place is now; places are shares of all panels with their gaps."""
        return 1 + (place - 1) * before / now if place > 1 else float(np.interp(place, old, new))

    for axis in axes:
        start, stop = map(moved, _domain(axis))
        if axis.domain:
            axis.domain = [start, min(stop, 1.0)]  # the sum of the sizes may round to more
        _thin(axis, now * (stop - start))
    _move_rest(figure, side, moved, ratio)


def _domain(axis: Any) -> tuple[float, float]:
    start, stop = axis.domain or (0.0, 1.0)
    return start, stop


def _size(panel: tuple[float, float]) -> float:
    return panel[1] - panel[0]


def _thin(axis: Any, pixels: float) -> None:
    """Leave out labels for which there is no room."""
    ticks = axis.tickvals
    if ticks is None:
        return
    step = ceil(_LABEL * len(ticks) / pixels)
    if step > 1:
        axis.tickvals = list(ticks)[::step]
        if axis.ticktext is not None:
            axis.ticktext = list(axis.ticktext)[::step]


def _move_rest(figure: go.Figure, side: Side, moved: Callable[[float], float], ratio: float) -> None:
    """Move notes, the legend and colour bars that are placed relative to all panels."""
    layout: Any = figure.layout
    at = "x" if side == "width" else "y"
    for note in layout.annotations:
        if note[f"{at}ref"] == "paper":
            note[at] = moved(note[at])
    if layout.legend[at] is not None:
        layout.legend[at] = moved(layout.legend[at])
    scales: list[Any] = [*figure.select_coloraxes()]
    for bar in (scale.colorbar for scale in scales):
        if side == "height" and bar.lenmode == "pixels":
            bar.len = min(bar.len, bar.len * ratio)
        elif side == "height" and bar.len is not None:
            low, high = moved(bar.y - bar.len / 2), moved(bar.y + bar.len / 2)
            bar.update(y=(low + high) / 2, len=high - low)
        elif side == "width" and bar.x is not None:
            bar.x = moved(bar.x)
