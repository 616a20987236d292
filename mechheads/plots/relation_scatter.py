"""Relation scores of heads as points, one panel per relation: static against dynamic, total effects against scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.heads import check_heads
from mechheads.plots.parts import FRAME, Panels, Theme, figure_title, interval, plain, themed
from mechheads.results.agreement import shared_relations

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mechheads.results.scores import HeadScores


_MARKS = {"with": ("with context", "#1f77b4", "circle"), "without": ("without context", "#ff7f0e", "diamond")}
_PANEL, _GAP = 300, 56
DIAGONAL = {"color": "#bbbbbb", "dash": "dot"}
"""Style of the line on which x and y are equal."""


def static_dynamic(
    static: HeadScores,
    dynamic: HeadScores,
    correlations: pd.DataFrame | None = None,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Scatter plot of relation scores in context (dynamic) against relation scores from weights (static).

    There is one panel for each relation that both have, with a point for each head and template.

    Args:
        static: from ``mh.relation_scores``.
        dynamic: from ``mh.labels.dynamic_scores`` of the same model.
        correlations: from ``mh.labels.score_correlations``; each panel then shows the correlation over all templates,
            with its interval.
        title: the title.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if a result is of another kind, the models have different sizes, or there is no common relation.

    >>> import numpy as np
    >>> phi = np.linspace(0, 1, 12).reshape(4, 3, 1)
    >>> static = mh.HeadScores.from_scores(phi, name="phi", unit="share", kind="relations", extra={"relation": ["r"]})
    >>> dynamic = mh.HeadScores.from_scores(
    ...     phi[..., None, None] / 2, name="dynamic", unit="share", kind="dynamic_relations",
    ...     extra={"relation": ["r"], "template": ["t"], "context": ["with"]})
    >>> agreement = mh.labels.score_correlations(static, dynamic)
    >>> mh.plots.static_dynamic(static, dynamic, agreement).layout.annotations[0].text
    'r<br>r = 1.00 [1.00, 1.00] with context'
    """
    import plotly.graph_objects as go

    relations = shared_relations(static, dynamic)
    contexts = dynamic.dataset["context"].values.tolist()
    headings = [_heading(name, correlations) for name in relations]
    figure, places = relation_panels(headings, across="static φ", up="dynamic φ", title=title)
    templates = dynamic.dataset["template"].values.tolist()
    names = check_heads(None, static.n_layers, static.n_heads)
    for relation, place in zip(relations, places, strict=True):
        figure.add_shape(type="line", x0=0, y0=0, x1=1, y1=1, line=DIAGONAL, layer="below", **place)
        phi = static.scores.sel(relation=relation).values.ravel()
        for context in contexts:
            label, colour, symbol = _MARKS[context]
            part = dynamic.scores.sel(relation=relation, context=context).transpose("template", "layer", "head")
            text = [f"<b>{name}</b> {plain(template)}" for template in templates for name in names]
            figure.add_trace(
                go.Scatter(
                    x=np.tile(phi, len(templates)),
                    y=part.values.ravel(),
                    mode="markers",
                    marker={"color": colour, "symbol": symbol, "size": 6, "opacity": 0.6},
                    name=label,
                    legendgroup=context,
                    showlegend=place == places[0],
                    text=text,
                    hovertemplate="%{text}<br>static %{x:.2f}, dynamic %{y:.2f}<extra></extra>",
                ),
                **place,
            )
    axis = {"range": [-0.03, 1.03], "tickvals": [0, 0.5, 1]}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return themed(figure, theme)


def relation_panels(
    headings: Sequence[str], *, across: str, up: str, title: str | None
) -> tuple[go.Figure, list[dict[str, Any]]]:
    """An empty figure with a square panel for each heading, and the row and column of each panel.

    Args:
        headings: the titles of the panels, already escaped for plotly.
        across, up: the titles of the axes, also escaped.
        title: the title of the figure.
    """
    columns = min(len(headings), 4)
    panels = Panels(ceil(len(headings) / columns), columns, _PANEL, _PANEL, _GAP, 1.6 * _GAP)
    figure = panels.figure(subplot_titles=headings)
    places = [panels.place(i) for i in range(len(headings))]
    figure.update_xaxes(**FRAME)
    figure.update_yaxes(**FRAME)
    for place in places[-columns:]:
        figure.update_xaxes(title_text=across, title_standoff=4, **place)
    figure.update_yaxes(title_text=up, title_standoff=4, col=1)
    figure.update_annotations(font_size=13)
    top = 90 if title else 60
    figure.update_layout(
        title=figure_title(title or ""),
        width=panels.width + 240,
        height=panels.height + top + 60,
        margin={"l": 60, "r": 180, "t": top, "b": 60},
    )
    return figure, places


def _heading(relation: str, correlations: pd.DataFrame | None) -> str:
    if correlations is None:
        return plain(relation)
    rows = correlations[(correlations["relation"] == relation) & (correlations["template"] == "all")]
    columns = zip(*(rows[name].tolist() for name in ("r", "ci_low", "ci_high", "context")), strict=True)
    return "<br>".join([plain(relation), *(_describe(*values) for values in columns if np.isfinite(values[0]))])


def _describe(r: float, low: float, high: float, context: str) -> str:
    return f"r = {r:.2f}{interval(low, high)} {context} context"


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
