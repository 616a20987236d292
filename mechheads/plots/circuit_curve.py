"""Faithfulness against the size of a circuit, for several rankings of heads, beside random orders."""

from __future__ import annotations

from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.plots.parts import FRAME, Theme, figure_of, figure_title, plain, themed
from mechheads.plots.traces import RANDOM, RANDOM_BAND, band_trace, line_trace

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_COLUMNS = ("ranking", "share", "k", "score", "ci_low", "ci_high")
_COLOURS = (
    ((178, 24, 43), "solid"),
    ((31, 119, 180), "dash"),
    ((27, 120, 55), "dot"),
    ((118, 42, 131), "dashdot"),
    ((138, 90, 0), "longdash"),
    ((0, 128, 128), "longdashdot"),
)
"""The colour and the dash of each ranking."""
_WIDTH, _HEIGHT, _LINE = 620, 360, 20
_TICKS = (0.1, 0.3, 1, 3, 10, 30, 100)
_MARGIN = 1.15
"""How far the axis goes on beyond the smallest and the largest circuit."""


def circuit_curve(
    table: pd.DataFrame,
    areas: pd.DataFrame,
    *,
    of: str = "heads",
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Faithfulness of the first heads of each ranking against their share of all; ``CircuitCurve.plot`` draws it.

    Each ranking is a line with its interval as a band; the hover text gives its CPR and CMD. Random orders are drawn as
    their mean, with a band from the lowest to the highest. The thin line is 1: what the whole model does. Circuits
    without any component are left out, because the axis is logarithmic.

    Args:
        table, areas: those of a ``CircuitCurve``.
        of: what the circuits consist of, such as "edges".
        title: the title; by default a general one.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if the table lacks a column, or there are more rankings than colours.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.circuit_curve(model, pairs, ["L23H4"], sizes=(0.01, 1), draws=2)
    >>> [trace.name for trace in found.plot().data if trace.showlegend is not False]
    ['random orders, 2 draws', 'ranking']
    """
    if absent := [name for name in _COLUMNS if name not in table]:
        raise ValueError(f"table has no column {absent[0]!r}; give the table of mh.patching.circuit_curve(...)")
    areas, table = areas.set_index("ranking"), table.query("k > 0")
    lines = {str(name): rows for name, rows in table.groupby("ranking", sort=False)}
    random = [name for name in lines if name.startswith("random ")]
    rankings = [name for name in lines if name not in random]
    if len(rankings) > len(_COLOURS):
        raise ValueError(
            f"table has {len(rankings)} rankings, but there are {len(_COLOURS)} colours; draw fewer at once"
        )
    traces: list[Any] = []
    if random:
        name = f"random orders, {len(random)} draw{'s' * (len(random) != 1)}"
        draws = table[table["ranking"].isin(random)].groupby("share")["score"].agg(["mean", "min", "max"])
        texts = [
            f"<b>{share:.3g}% of {of}, random</b><br>faithfulness {mean:.2f}, {low:.2f} to {high:.2f} over draws"
            for share, mean, low, high in zip(100 * draws.index, draws["mean"], draws["min"], draws["max"], strict=True)
        ]
        traces.append(band_trace(100 * draws.index, draws["min"], draws["max"], RANDOM_BAND, name))
        traces.append(line_trace(100 * draws.index, draws["mean"], name, texts, {"color": RANDOM, "width": 2}))
    for name, ((red, green, blue), dash) in zip(rankings, _COLOURS, strict=False):
        rows, said = lines[name], plain(name)
        band, colour = f"rgba({red}, {green}, {blue}, 0.13)", f"rgb({red}, {green}, {blue})"
        traces.append(band_trace(100 * rows["share"], rows["ci_low"], rows["ci_high"], band, said))
        line = line_trace(
            100 * rows["share"],
            rows["score"],
            said,
            _texts(said, of, rows, areas.loc[name].to_dict()),
            {"color": colour, "width": 3},
        )
        traces.append(line.update(line_dash=dash))
    figure = figure_of(traces)
    ends = np.log10([100 * table["share"].min() / _MARGIN, 100 * table["share"].max() * _MARGIN])
    figure.update_xaxes(
        **FRAME,
        type="log",
        range=ends,
        tickvals=_TICKS,
        ticktext=[f"{tick:g}%" for tick in _TICKS],
        title_text=f"{of} in the circuit, share of all",
    )
    figure.update_yaxes(**FRAME, title_text="faithfulness", showgrid=True)
    figure.add_hline(y=1, line={"color": RANDOM, "width": 1})
    figure.update_layout(
        title=figure_title("Faithfulness of circuits by size" if title is None else title),
        legend={"traceorder": "reversed", "orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        showlegend=True,
        width=_WIDTH + 90,
        height=_HEIGHT + 160 + _LINE * ceil(len(traces) / 4),
        margin={"l": 70, "r": 20, "t": 70, "b": 90 + _LINE * ceil(len(traces) / 4)},
    )
    return themed(figure, theme)


def _texts(name: str, of: str, rows: pd.DataFrame, areas: dict[str, float]) -> list[str]:
    both = "<br>".join(
        f"{measure.upper()} {_number(areas[measure], areas[f'{measure}_low'], areas[f'{measure}_high'])}"
        for measure in ("cpr", "cmd")
    )
    return [
        f"<b>{name}, {row['k']} of all {of}</b><br>"
        f"faithfulness {_number(row['score'], row['ci_low'], row['ci_high'])}<br>{both}"
        for row in rows.to_dict("records")
    ]


def _number(value: float, low: float, high: float) -> str:
    """A number with its interval, if it has one."""
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if isfinite(low) and isfinite(high) else f"{value:.2f}"
