"""Total effects of heads against their relation scores: one point per head, one panel per relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.plots.parts.text import interval, plain
from mechheads.plots.parts.theme import Theme, themed
from mechheads.plots.static_dynamic import DIAGONAL, relation_panels

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_KINDS = {
    "neither": ("#c8c8c8", "circle", 5),
    "weights only": ("#e08214", "square", 8),
    "in context only": ("#762a83", "diamond", 9),
    "confirmed": ("#1b7837", "circle", 9),
    "no interval": ("#c8c8c8", "circle-open", 5),
    "interval includes 0": ("#c8c8c8", "circle", 5),
    "interval excludes 0": ("#1b7837", "circle", 9),
}
"""Colour, symbol and size of each kind of point; later kinds are drawn over earlier ones."""

_QUIET = ("neither", "no interval", "interval includes 0")
_NAMED, _APART = 8, (0.16, 0.05)
"""The largest number of heads named in a panel, and the least distance between two of them, as shares of the panel."""


def effect_scatter(
    table: pd.DataFrame,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Total effect of every head on every relation, against its relation score; ``CausalEvidence.plot`` draws it.

    If the table has verdicts, points are coloured by verdict. Otherwise they are coloured by whether the interval of
    the total effect excludes 0 (with fewer than three clusters there is no interval). Without relation scores, the x
    axis is the direct effect; on the dotted line, all of the effect is direct. Points that are not grey have their
    intervals as bars, and the points furthest from the origin are named. The hover text shows all numbers of a head.

    Args:
        table: a row for each head and relation. Columns: ``head``, ``relation``, and ``total`` and ``direct`` with
            their intervals, ``total_low`` and so on; optionally ``phi`` with its interval, and ``verdict``. Rows
            without a total effect are left out.
        title: the title.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if no row has a total effect.

    >>> found = mh.labels.relation_evidence(model, "country_to_capital", n=2, shots=1, heads=["L23H4"])
    >>> [trace.name for trace in found.plot().data]
    ['no interval']
    """
    table = table.dropna(subset=["total"])
    if table.empty:
        raise ValueError("table holds no total effect: no head was measured")
    across = "phi" if "phi" in table else "direct"
    kinds = _kinds_of(table)
    relations = list(dict.fromkeys(table["relation"].tolist()))
    figure, places = relation_panels(
        [plain(name) for name in relations],
        across={"phi": "relation score φ", "direct": "direct effect (share restored)"}[across],
        up="total effect (share restored)",
        title=title,
    )
    loud = ~np.isin(kinds, _QUIET)
    x_range = [-0.03, 1.03] if across == "phi" else _range(table["direct"])
    y_range = _range(table["total"], table["total_low"][loud], table["total_high"][loud])
    shown: set[str] = set()
    for relation, place in zip(relations, places, strict=True):
        if across == "direct":
            figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=DIAGONAL, layer="below", **place)
        here = (table["relation"] == relation).to_numpy()
        named = _named(table[here & loud], across, x_range, y_range)
        for kind in (kind for kind in _KINDS if (here & (kinds == kind)).any()):
            some = table[here & (kinds == kind)]
            figure.add_trace(_points(some, across, kind, named, kind not in shown), **place)
            shown.add(kind)
    figure.update_xaxes(range=x_range)
    figure.update_yaxes(range=y_range, zeroline=True)
    title_of_legend = {"phi": "weights and context", "direct": "total effect"}[across]
    figure.update_layout(legend={"title": {"text": title_of_legend}, "traceorder": "reversed", "tracegroupgap": 0})
    return themed(figure, theme)


def _kinds_of(table: pd.DataFrame) -> np.ndarray:
    """The kind of each row: its verdict, or what its interval says."""
    if "verdict" in table:
        return table["verdict"].replace("", _QUIET[0]).to_numpy(dtype=object)
    low, high = table["total_low"], table["total_high"]
    kinds = np.where((low > 0) | (high < 0), "interval excludes 0", "interval includes 0").astype(object)
    kinds[(low.isna() | high.isna()).to_numpy()] = "no interval"
    return kinds


def _named(rows: Any, across: str, x_range: list[float], y_range: list[float]) -> dict[str, str]:
    """The heads to name, furthest from the origin first, each with the position of its name next to its point."""
    at = rows[[across, "total"]].to_numpy()
    low, high = np.array([x_range, y_range]).T
    places = (at - low) / (high - low)
    chosen: list[int] = []
    for i in np.argsort(-np.hypot(*at.T), kind="stable").tolist():
        near = (np.abs(places[i] - places[chosen]) < _APART).all(1).any()
        if len(chosen) < _NAMED and not near:
            chosen.append(i)
    heads = rows["head"].tolist()
    return {heads[i]: "middle left" if places[i][0] > 0.8 else "middle right" for i in chosen}


def _points(rows: Any, across: str, kind: str, named: dict[str, str], show: bool) -> go.Scatter:
    import plotly.graph_objects as go

    colour, symbol, size = _KINDS[kind]
    loud = kind not in _QUIET
    heads, total = rows["head"].tolist(), rows["total"].to_numpy()
    bars = {
        "type": "data",
        "symmetric": False,
        "array": rows["total_high"].to_numpy() - total,
        "arrayminus": total - rows["total_low"].to_numpy(),
        "color": colour,
        "thickness": 0.8,
        "width": 0,
    }
    return go.Scatter(
        x=rows[across].to_numpy(),
        y=total,
        mode="markers+text" if loud else "markers",
        marker={"color": colour, "symbol": symbol, "size": size, "opacity": 0.9 if loud else 0.6},
        error_y=bars if loud else None,
        text=[head if head in named else "" for head in heads] if loud else None,
        textposition=[named.get(head, "middle right") for head in heads] if loud else None,
        textfont={"size": 10},
        hovertext=_hover(rows, kind),
        hovertemplate="%{hovertext}<extra></extra>",
        name=kind,
        legendgroup=kind,
        showlegend=show,
    )


def _hover(rows: pd.DataFrame, kind: str) -> list[str]:
    def number(row: dict[str, Any], name: str) -> str:
        ends = interval(row[f"{name}_low"], row[f"{name}_high"])
        return f"{'φ' if name == 'phi' else f'{name} effect'} {row[name]:.2f}{ends}"

    wanted = [name for name in ("phi", "total", "direct") if name in rows]
    verdict = [kind] if "verdict" in rows else []
    return [
        "<br>".join(
            [f"<b>{row['head']}</b> {plain(row['relation'])}", *verdict, *(number(row, name) for name in wanted)]
        )
        for row in rows.to_dict("records")
    ]


def _range(*columns: Any) -> list[float]:
    """An axis range from the lowest to the highest value, at least from 0 to 0.2, with some margin."""
    values = np.concatenate([column.to_numpy() for column in columns])
    low, high = min(0.0, np.nanmin(values)), max(0.2, np.nanmax(values))
    room = 0.08 * (high - low)
    return [float(low - room), float(high + room)]
