"""Curves: one number as a set of heads grows, for several orders of heads, beside random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.messages.arguments import AboveZero, checked
from mechheads.plots.parts import (
    FRAME,
    Panels,
    Theme,
    figure_title,
    interval,
    plain,
    symlog as warped,
    themed,
    warp_row,
)
from mechheads.results.tables import Curves, is_random

if TYPE_CHECKING:
    import plotly.graph_objects as go

Grid = dict[str, dict[str, Curves]]


@dataclass(frozen=True)
class _Style:
    """How the curves of one analysis are drawn."""

    title: str  # of the figure
    done: str  # what happens to the heads of a set
    y: str
    form: str = ".2f"  # of a score in hover texts
    line: float | None = None  # the value of the intact model, marked by a thin line
    is_share: bool = False


_STYLES = {
    "faithfulness_curve": _Style(
        "Faithfulness of circuits by size", "in the circuit", "faithfulness (share kept)", line=1
    ),
    "removal": _Style("Accuracy as heads are removed", "removed", "accuracy", is_share=True),
    "attack_curve": _Style(
        "Attack success as heads are ablated", "ablated together", "attack success", ".0%", is_share=True
    ),
    "role_curves": _Style(
        "Log-probability of the target as heads are gated off", "gated off", "change in log p (nats)", "+.2f", line=0
    ),
}
_ROLES = {"facilitation": "#1f6fb4", "irrelevance": "#be8c00", "interference": "#c53030"}
_COLOURS = ("#b2182b", "#1f77b4", "#1b7837", "#762a83", "#8a5a00", "#008080")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_RANDOM, _RANDOM_BAND = "#6b6b6b", "rgba(107, 107, 107, 0.22)"
_BESIDE = {"deflected": ("#5b4a9e", "dash"), "degenerate": ("#8a5a00", "dot")}
"""Columns that are drawn beside the score of the first line, thinner: if degenerate answers rise, the model breaks."""
_POINTS = ("which", "k", "score", "ci_low", "ci_high")
"""The columns of every table; hover texts also show all others."""
_TITLES = {"syntax": "Syntax", "common_sense": "Common Sense", "math": "Math"}
_GAP_ACROSS, _GAP_DOWN, _WIDEST = 24, 28, 1180
_CROWDED = 1.5
"""The axis is logarithmic if every size is this many times the one before; the last, all heads, may be smaller."""


@checked
def curves(
    curves: Curves | Sequence[Curves] | Mapping[str, Mapping[str, Curves]],
    *,
    title: str | None = None,
    symlog: AboveZero | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Curves of one number as a set of heads grows: a line for each order of heads, and one panel per result.

    Light bands are intervals. The grey band covers all random orders, around their mean. Thin lines beside attack
    success are the shares of deflected and of degenerate answers with the same heads ablated. The hover text shows the
    last head of the set, the score with its interval, and the other numbers of the point. Points that an interrupted
    run did not reach are left out. Sizes that grow by a factor, such as 1, 2, 4 and so on to 64, or 1, 2, 5, 10, 20,
    50, have a logarithmic axis.

    Args:
        curves: one result of ``cumulative_removal``, ``attack_curve`` or ``role_curve``, or the circuit of an atlas; a
            list of results of one of these, with a row for each task, relation or metric and a column for each model;
            or ``{row: {column: result}}``. If one was not measured, the panel says so.
        title: the title; by default a general one.
        symlog: draw the score on a symmetric logarithmic axis, which is linear between minus and plus this number, such
            as 0.1; small and large changes can then be read in one panel. By default the axis is linear.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is nothing to draw, a result cannot be drawn, results are of different analyses, two have
            the same place, or ``symlog`` is not above 0.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"], name="capitals")
    >>> gates = mh.fit_gates(model, task, seeds=1, updates=1)
    >>> result = mh.gating.role_curve(model, task, gates, counts=[0, 3], draws=2)
    >>> [trace.name for trace in mh.plots.curves(result).data if trace.showlegend]
    ['random orders, 2 draws', 'facilitation', 'interference', 'irrelevance']
    """
    grid = _grid(curves)
    first = next(result for row in grid.values() for result in row.values())
    style = _STYLES[first.kind]
    models = list(dict.fromkeys(model for row in grid.values() for model in row))
    panels = Panels(len(grid), len(models), *_sizes(len(grid), len(models)), _GAP_ACROSS, _GAP_DOWN)
    titles = [plain(model) for model in models]
    figure = panels.figure(column_titles=titles, shared_xaxes=True, shared_yaxes=True)
    figure.update_xaxes(**FRAME)
    figure.update_yaxes(**FRAME, title_standoff=8, showgrid=True)
    figure.update_annotations(font_size=13)
    named: set[str] = set()
    for row, (name, across) in enumerate(grid.items(), 1):
        for column, model in enumerate(models, 1):
            place: dict[str, Any] = {"row": row, "col": column}
            if model not in across:
                _add_note(figure, "not measured", place)
                continue
            for trace in _traces(across[model], style, f"{plain(name)}, {plain(model)}"):
                if isinstance(trace.name, str):
                    trace.showlegend = trace.name not in named
                    named.add(trace.name)
                figure.add_trace(trace, **place)
            if style.line is not None:
                line = {"color": "#444444", "width": 1.2, "dash": "dash"}
                y = style.line if symlog is None else float(warped(style.line, symlog))
                figure.add_hline(y=y, line=line, layer="below", **place)
        figure.update_yaxes(title_text=f"<b>{plain(name)}</b><br>{style.y}", row=row, col=1)
        if symlog is not None:
            warp_row(figure, row, symlog)
    if style.is_share and symlog is None:
        figure.update_yaxes(range=[-0.03, 1.03], tickformat=".0%", dtick=0.2)
    _set_size_axes(figure, [result for row in grid.values() for result in row.values()])
    figure.update_xaxes(title_text=f"number of heads {style.done}", title_standoff=6, row=len(grid))
    legend_width = 64 + 6.8 * max(map(len, named), default=0)
    figure.update_layout(
        title=figure_title(style.title if title is None else title) | {"y": 1, "yanchor": "top", "pad": {"t": 20}},
        legend={"x": 1 + 10 / panels.width, "xanchor": "left", "y": 1, "yanchor": "top"},
        showlegend=True,
        width=panels.width + 90 + legend_width,
        height=panels.height + 145,
        margin={"l": 90, "r": legend_width, "t": 85, "b": 60},
    )
    return themed(figure, theme)


def _grid(curves: Any) -> Grid:
    """The curves by row and column, after a check that they belong together."""
    if isinstance(curves, Mapping):
        listed = [(name, model, result) for name, row in curves.items() for model, result in row.items()]
    else:
        several = [curves] if isinstance(curves, Curves) else curves
        listed = [("", "", result) for result in several]
    if not listed:
        raise ValueError("curves is empty; give the result of an analysis, such as mh.gating.role_curve")
    for *_, result in listed:
        if not isinstance(result, Curves) or result.kind not in _STYLES:
            made = f"curves of {result.kind}" if isinstance(result, Curves) else repr(result)
            raise ValueError(f"curves holds {made}; what can be drawn are curves of {', '.join(_STYLES)}")
    if not isinstance(curves, Mapping):
        listed = [(result.name, str(result.provenance.get("model", "")), result) for *_, result in listed]
    if len(kinds := sorted({result.kind for *_, result in listed})) > 1:
        raise ValueError(f"curves are of {' and '.join(kinds)}; draw each analysis in its own figure")
    grid: Grid = {}
    for name, model, result in listed:
        row = grid.setdefault(_TITLES.get(name, str(name)), {})
        if model in row:
            raise ValueError(
                f"two of the curves are of {name!r} and model {model!r}; give one, or {{row: {{name: curves}}}}"
            )
        row[model] = result
    return grid


def _line_name(curves: Curves, which: str) -> str:
    """The name of a line in the legend; for removal, the heads' own relation or a control."""
    if curves.kind != "removal":
        return which
    return curves.name if which == "relation" else f"control: {which}"


def _add_note(figure: go.Figure, text: str, place: dict[str, Any]) -> None:
    """Write a text into a panel that has nothing to draw."""
    import plotly.graph_objects as go

    figure.add_trace(go.Scatter(x=[None], y=[None], showlegend=False), **place)  # a panel without traces is not drawn
    figure.add_annotation(
        text=text,
        x=0.5,
        y=0.5,
        xref="x domain",
        yref="y domain",
        showarrow=False,
        font={"size": 12, "color": "#777777"},
        **place,
    )


def _sizes(rows: int, columns: int) -> tuple[int, int]:
    """Width and height of a panel in pixels."""
    if rows == columns == 1:
        return 560, 340
    widest = 480 if columns == 1 else 360
    return min(widest, max(180, (_WIDEST - (columns - 1) * _GAP_ACROSS) // columns)), 220


def _set_size_axes(figure: go.Figure, shown: Sequence[Curves]) -> None:
    """Make the horizontal axes linear, with ticks at whole numbers, or logarithmic if the sizes grow by a factor."""
    sizes = np.concatenate([result.table["k"].to_numpy() for result in shown])
    if _grow_by_a_factor(sizes):
        ticks, first = np.unique(sizes), sizes[sizes > 0].min()
        traces: list[Any] = list(figure.select_traces())
        for trace in traces:
            if None not in trace.x:
                trace.x = _log2_places(trace.x, first)
        figure.update_xaxes(tickvals=_log2_places(ticks, first), ticktext=[f"{size:g}" for size in ticks])
    else:
        spacing: dict[str, Any] = {"dtick": 1} if sizes.max() <= 8 else {"nticks": 7}
        figure.update_xaxes(**spacing)


def _grow_by_a_factor(sizes: np.ndarray) -> bool:
    """Whether there are at least four sizes above 0 that a linear axis would crowd at its beginning."""
    above = np.unique(sizes[sizes > 0])
    return len(above) > 3 and bool((above[1:-1] / above[:-2] >= _CROWDED).all())


def _log2_places(sizes: Any, first: float) -> np.ndarray:
    """Places on an axis on which doubling is one step; 0 is one step before the first size."""
    values = np.asarray(sizes, dtype=float)
    return np.log2(np.where(values > 0, values, first / 2))


def _traces(curves: Curves, style: _Style, where: str) -> list[go.Scatter]:
    """The traces of a panel: first all bands, random orders below the others, then the lines."""
    table = curves.table
    random: Any = table[table["which"].map(is_random)]
    lines = {str(which): rows for which, rows in table.groupby("which", sort=False) if not is_random(which)}
    bands, drawn = [], []
    if n := random["which"].nunique():
        name = f"random orders, {n} draw{'s' * (n != 1)}"
        by_size = random.drop(columns="which").groupby("k")
        draws = by_size.mean().assign(low=by_size["score"].min(), high=by_size["score"].max()).reset_index()
        x, form = draws["k"].to_numpy(), style.form
        texts = [
            f"<b>{name}</b>, {where}<br>k {row['k']}<br>{style.y} {row['score']:{form}}<br>"
            f"draws {row['low']:{form}} to {row['high']:{form}}{_others(row, form, ('low', 'high'))}"
            for row in draws.to_dict("records")
        ]
        bands.append(_band(x, draws["low"], draws["high"], _RANDOM_BAND, name))
        drawn.append(_line(x, draws["score"], name, texts, {"color": _RANDOM, "width": 2}))
    for i, (which, rows) in enumerate(lines.items()):
        colour = _ROLES.get(which, _COLOURS[i % len(_COLOURS)])
        dash = _DASHES[(i + i // len(_COLOURS)) % len(_DASHES)]  # no two lines look alike
        x, name = rows["k"].to_numpy(), plain(_line_name(curves, which))
        texts = _texts(curves, which, rows, style, where)
        if not i:
            for column in (column for column in _BESIDE if column in rows):
                look = dict(zip(("color", "dash"), _BESIDE[column], strict=True)) | {"width": 1.5}
                drawn.append(_line(x, rows[column], f"{column} answers", texts, look).update(mode="lines"))
        bands.append(_band(x, rows["ci_low"], rows["ci_high"], _pale(colour), name))
        drawn.append(_line(x, rows["score"], name, texts, {"color": colour, "width": 3 - (i > 0), "dash": dash}))
    return bands + drawn


def _texts(curves: Curves, which: str, rows: Any, style: _Style, where: str) -> list[str]:
    """The hover text of each point. Averages over seeds name no last head, because each seed has its own order."""
    order = () if curves.provenance.get("over") == "seeds" else curves.order.get(which, ())
    texts = []
    for row in rows.to_dict("records"):
        last = f", head {order[row['k'] - 1]}" if order and row["k"] else ""
        ends = interval(row["ci_low"], row["ci_high"], style.form)
        texts.append(
            f"<b>{plain(_line_name(curves, which))}</b>, {where}<br>k {row['k']}{last}<br>"
            f"{style.y} {row['score']:{style.form}}{ends}{_others(row, style.form)}"
        )
    return texts


def _others(row: dict[str, Any], form: str, shown: Sequence[str] = ()) -> str:
    """The other numbers of a point, one line each."""
    others = {name: value for name, value in row.items() if name not in (*_POINTS, *shown)}
    return "".join(
        f"<br>{name.replace('_', ' ')} {format(value, form) if isfinite(value) else ''}"
        for name, value in others.items()
    )


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.13)"


def _line(x: Any, y: Any, name: str, text: list[str], line: dict[str, Any]) -> go.Scatter:
    """A line with a dot and a hover text for each point; ``line`` is plotly's line style."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=np.asarray(x),
        y=np.asarray(y),
        mode="lines+markers",
        marker={"size": 5},
        line=line,
        name=name,
        legendgroup=name,
        text=text,
        hovertemplate="%{text}<extra></extra>",
    )


def _band(x: Any, low: Any, high: Any, colour: str, group: str) -> go.Scatter:
    """The area between two curves at the points at which both are finite; ``group`` is the name of the band's line."""
    import plotly.graph_objects as go

    known = np.isfinite(np.asarray(low)) & np.isfinite(np.asarray(high))
    along, bottom, top = (np.asarray(part)[known] for part in (x, low, high))
    return go.Scatter(
        x=np.concatenate([along, along[::-1]]),
        y=np.concatenate([bottom, top[::-1]]),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=colour,
        hoverinfo="skip",
        legendgroup=group,
        showlegend=False,
    )
