"""How far several views of the same heads agree: a cell with the rank correlation of every two views."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from mechheads.plots.parts import (
    SIGNED,
    Theme,
    colour_axis,
    figure_of,
    figure_title,
    heat_trace,
    interval,
    plain,
    themed,
)

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_CELL_WIDTH, _CELL_HEIGHT, _FAINT = 86, 44, 0.25


def view_agreement(
    correlations: pd.DataFrame,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Rank correlations of every two views: red if they order heads alike, blue if in opposite order.

    Pairs whose interval includes 0, or that have no interval, are pale with a grey number: the views may be unrelated.
    A dash means that no correlation is defined. The hover text shows the interval and the number of heads.

    Args:
        correlations: a row for every two views, such as ``Atlas.agreement()``: view, other, spearman, ci_low, ci_high
            and n.
        title: the title; by default a general one.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there are no rows, a column is missing, or two views occur twice.

    >>> import pandas as pd
    >>> row = {"view": "phi", "other": "patching", "spearman": 0.4, "ci_low": 0.1, "ci_high": 0.6, "n": 270}
    >>> mh.plots.view_agreement(pd.DataFrame([row])).data[-1].text
    ('0.40',)
    """
    found = _cells(correlations)
    names = list(dict.fromkeys(name for pair in found for name in pair))
    place = {name: i for i, name in enumerate(names)}
    sure, unsure = (np.full((len(names) - 1, len(names) - 1), np.nan) for _ in range(2))
    hover = np.full(sure.shape, "", dtype=object)
    across, down, numbers, colours = [], [], [], []
    for (one, other), (r, low, high, n) in found.items():
        column, row = sorted((place[one], place[other]))
        excludes_0 = low > 0 or high < 0
        (sure if excludes_0 else unsure)[row - 1, column] = r
        hover[row - 1, column] = _hover(one, other, r, low, high, n)
        across.append(column)
        down.append(row - 1)
        numbers.append(f"{r:.2f}" if isfinite(r) else "–")
        colours.append("#8a8a8a" if not excludes_0 else "white" if abs(r) > 0.7 else "#222222")
    figure = figure_of(
        [heat_trace(z, None, None, hover, 2, opacity=opacity) for z, opacity in ((sure, 1.0), (unsure, _FAINT))]
    )
    figure.add_scatter(
        x=across,
        y=down,
        mode="text",
        text=numbers,
        textfont={"color": colours, "size": 13},
        hoverinfo="skip",
        showlegend=False,
    )
    _lay_out(figure, [plain(name.replace("_", " ")) for name in names])
    figure.update_layout(title=figure_title("Rank correlation of views of the same heads" if title is None else title))
    return themed(figure, theme)


def _cells(correlations: pd.DataFrame) -> dict[tuple[str, str], tuple[float, float, float, int]]:
    """Correlation, interval and number of heads of every two views.

    Raises:
        ValueError: if there are no rows, a column is missing, or two views occur twice.
    """
    columns = ["view", "other", "spearman", "ci_low", "ci_high", "n"]
    if absent := [name for name in columns if name not in correlations]:
        raise ValueError(f"correlations has no column {absent[0]!r}; give the result of Atlas.agreement")
    if not len(correlations):
        raise ValueError("correlations has no rows; give a row for every two views, from at least two views")
    found: dict[tuple[str, str], tuple[float, float, float, int]] = {}
    for view, other, *rest in correlations[columns].itertuples(index=False):
        if view == other or (view, other) in found or (other, view) in found:
            raise ValueError(f"correlations has {view!r} and {other!r} twice; give one row for every two views")
        found[view, other] = tuple(rest)
    return found


def _hover(one: str, other: str, r: float, low: float, high: float, n: int) -> str:
    pair = " and ".join(plain(name.replace("_", " ")) for name in (one, other))
    return f"<b>{pair}</b><br>ρ = {r:.2f}{interval(low, high) or ', no interval'}<br>{n} heads"


def _lay_out(figure: go.Figure, names: list[str]) -> None:
    """Set the axes: all views but the first down, all but the last across, which is the half below the diagonal."""
    n = len(names) - 1
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(n)),
        "ticklabelstandoff": 4,
    }
    figure.update_xaxes(**ticks, ticktext=names[:-1], range=[-0.5, n - 0.5], tickangle=-35)
    figure.update_yaxes(**ticks, ticktext=names[1:], range=[n - 0.5, -0.5])
    figure.update_layout(
        coloraxis=colour_axis(SIGNED, -1, 1, "ρ"),
        width=n * _CELL_WIDTH + 330,
        height=max(n * _CELL_HEIGHT, 120) + 220,
        margin={"l": 200, "r": 130, "t": 80, "b": 140},
    )
