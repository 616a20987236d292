"""Role curves (how a task changes as heads of each role are gated off) and maps of the heads with each role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from mechheads.heads import HeadId
from mechheads.plots.heatmap import heatmap
from mechheads.plots.parts import FRAME, Panels, Theme, figure_title, interval, plain, themed, warp_row
from mechheads.plots.traces import band_trace, line_trace
from mechheads.results.dataset import RANGE
from mechheads.results.scores import HeadScores

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_LINES = {
    "facilitation": ("Facilitation", (31, 111, 180), "circle"),
    "irrelevance": ("Irrelevance", (190, 140, 0), "square"),
    "interference": ("Interference", (197, 48, 48), "diamond"),
}
"""The name, the colour and the marker of each role's line, in the order of the legend."""
_RANDOM, _RANDOM_BAND = "#8a8a8a", "rgba(107, 107, 107, 0.22)"
_TITLES = {"syntax": "Syntax", "common_sense": "Common Sense", "math": "Math"}
_GAP_ACROSS, _GAP_DOWN, _WIDEST = 24, 28, 1180


@runtime_checkable
class Curves(Protocol):
    """The parts of ``RoleCurves`` that are drawn."""

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def band(self) -> pd.DataFrame: ...
    @property
    def heads(self) -> Mapping[str, Sequence[HeadId]]: ...
    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def provenance(self) -> dict[str, Any]: ...


Grid = dict[str, dict[str, Curves]]


def role_curves(
    curves: Curves | Sequence[Curves] | Mapping[str, Mapping[str, Curves]],
    *,
    title: str | None = None,
    symlog: float | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Change in a target's log-probability as the top heads of each role are gated off: a panel per task and model.

    Rows are tasks and columns are models; the panels of a row share their scale. Light bands are intervals. The grey
    band covers all random orders of the heads, around their mean. The hover text shows the head gated off last, the
    change and its interval. Points that an interrupted run did not reach are left out.

    Args:
        curves: results of ``mh.gating.role_curve``: one result, a list (placed by the names of task and model), or
            ``{task: {model: curves}}``. If a task was not measured on a model, the panel says so.
        title: the title; by default a general one.
        symlog: draw the change on a symmetric logarithmic axis, which is linear between minus and plus this many nats,
            such as 0.1; small and large changes can then be read in one panel. By default the axis is linear.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is nothing to draw, two results have the same task and model, one lacks a role, or
            ``symlog`` is not above 0.

    After Nam et al. 2025 (arXiv 2505.13737).

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"], name="capitals")
    >>> gates = mh.fit_gates(model, task, seeds=1, updates=1)
    >>> curves = mh.gating.role_curve(model, task, gates, counts=[0, 3], draws=2)
    >>> [trace.name for trace in mh.plots.role_curves(curves).data if trace.showlegend]
    ['random orders', 'Facilitation', 'Irrelevance', 'Interference']
    """

    grid = _grid(curves)
    if symlog is not None and not (isfinite(symlog) and symlog > 0):
        raise ValueError(f"symlog is {symlog}; it must be above 0, such as 0.1")
    models = list(dict.fromkeys(model for row in grid.values() for model in row))
    panels = Panels(len(grid), len(models), *_sizes(len(grid), len(models)), _GAP_ACROSS, _GAP_DOWN)
    titles = [plain(model) for model in models]
    figure = panels.figure(column_titles=titles, shared_xaxes=True, shared_yaxes=True)
    figure.update_xaxes(**FRAME, nticks=7)
    figure.update_yaxes(**FRAME, title_standoff=8, showgrid=True)
    figure.update_annotations(font_size=13)
    named: set[str] = set()
    for row, (task, across) in enumerate(grid.items(), 1):
        for column, model in enumerate(models, 1):
            place: dict[str, Any] = {"row": row, "col": column}
            if model not in across:
                _add_note(figure, "not measured", place)
                continue
            for trace in _traces(across[model], f"{plain(task)}, {plain(model)}"):
                if isinstance(trace.name, str):
                    trace.showlegend = trace.name not in named
                    named.add(trace.name)
                figure.add_trace(trace, **place)
            figure.add_hline(y=0, line={"color": "#444444", "width": 1.2, "dash": "dash"}, layer="below", **place)
        figure.update_yaxes(title_text=f"<b>{plain(task)}</b><br>change in log p (nats)", row=row, col=1)
        if symlog is not None:
            warp_row(figure, row, symlog)
    figure.update_xaxes(title_text="number of heads gated off", title_standoff=6, row=len(grid))
    heading = "Log-probability of the target as heads are gated off" if title is None else title
    figure.update_layout(
        title=figure_title(heading) | {"y": 1, "yanchor": "top", "pad": {"t": 20}},
        legend={"orientation": "h", "x": 0, "y": 1 + 30 / panels.height, "yanchor": "bottom"},
        showlegend=True,
        width=panels.width + 130,
        height=panels.height + 175,
        margin={"l": 90, "r": 40, "t": 115, "b": 60},
    )
    return themed(figure, theme)


def role_map(
    roles: Mapping[str, HeadScores],
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmaps of how strongly each head has each role, from 0 to 1: one panel per role.

    The hover text shows a head's name, score and interval.

    Args:
        roles: the result of ``mh.head_roles``.
        title: the title; by default made from the task.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there are no roles.

    >>> task = mh.Task(["The capital of France is"], [" Paris"], name="capitals")
    >>> roles = mh.head_roles(mh.fit_gates(model, task, seeds=2, updates=1))
    >>> mh.plots.role_map(roles).layout.title.text
    'Roles of heads, capitals'
    """
    if not isinstance(roles, Mapping) or not roles:
        raise ValueError("roles must be the result of mh.head_roles, or some of its roles")
    first = next(iter(roles.values()))
    score, low, high = (
        np.stack([one.dataset[name].values for one in roles.values()], -1) for name in ("score", "ci_low", "ci_high")
    )
    task = first.provenance.get("task")
    together = HeadScores.from_scores(
        score,
        name="Roles of heads" + (f", {task}" if task else ""),
        unit=first.unit,
        kind=first.kind,
        ci_low=low,
        ci_high=high,
        extra={"role": [_LINES[role][0] if role in _LINES else role for role in roles]},
    )
    if all(end in one.dataset for end in RANGE for one in roles.values()):
        ranges = {end: np.stack([one.dataset[end].values for one in roles.values()], -1) for end in RANGE}
        together = HeadScores(together.dataset.assign({end: (together.scores.dims, r) for end, r in ranges.items()}))
    figure = heatmap(together, title=title, theme=theme)
    return figure.update_coloraxes(cmin=0, cmax=1)


def _grid(curves: Any) -> Grid:
    """The curves by task and model, after a check that each has all roles."""
    if isinstance(curves, Mapping):
        given = [(task, model, one) for task, row in curves.items() for model, one in row.items()]
    else:
        several = curves if isinstance(curves, Sequence) else [curves]
        given = [(one.name, one.model, one) for one in several]
    if not given:
        raise ValueError("curves is empty; give the result of mh.gating.role_curve")
    grid: Grid = {}
    for task, model, one in given:
        row = grid.setdefault(_TITLES.get(task, str(task)), {})
        if model in row:
            raise ValueError(
                f"two of the curves are of task {task!r} and model {model!r}; give one, or {{task: {{name: curves}}}}"
            )
        if absent := [r for r in _LINES if r not in set(one.table["which"])]:
            raise ValueError(f"the curves of task {task!r} and model {model!r} have no rows for {absent[0]!r}")
        row[model] = one
    return grid


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


def _traces(curves: Curves, where: str) -> list[go.Scatter]:
    """The traces of a panel: first the band of random orders, then the bands of the roles, then the lines."""
    band, lines = curves.band, {which: part.sort_values("k") for which, part in curves.table.groupby("which")}
    bands, drawn = [], []
    if len(band):
        name = "random orders"
        texts = [
            f"<b>{name}</b>, {where}<br>{_gated(k)}<br>{mean:+.2f} nats, {low:+.2f} to {high:+.2f}"
            for k, mean, low, high in band[["k", "mean", "low", "high"]].itertuples(index=False)
        ]
        bands.append(band_trace(band["k"], band["low"], band["high"], _RANDOM_BAND, name))
        drawn.append(line_trace(band["k"], band["mean"], name, texts, {"color": _RANDOM, "width": 1.5}))
        drawn[-1].mode = "lines"
    for role, (name, colour, mark) in _LINES.items():
        line, rgb = lines[role], ", ".join(map(str, colour))
        bands.append(band_trace(line["k"], line["ci_low"], line["ci_high"], f"rgba({rgb}, 0.14)", name))
        drawn.append(
            line_trace(
                line["k"], line["change"], name, _texts(line, curves, role, where), {"color": f"rgb({rgb})", "width": 2}
            )
        )
        drawn[-1].marker.update(symbol=mark, size=4)
    return bands + drawn


def _texts(line: pd.DataFrame, curves: Curves, role: str, where: str) -> list[str]:
    """The hover text of each point. Averages over seeds name no last head, because each seed has its own order."""
    order = curves.heads[role] if curves.provenance.get("over") == "items" else ()
    texts = []
    for k, change, low, high in line[["k", "change", "ci_low", "ci_high"]].itertuples(index=False):
        last = f", the last {order[k - 1]}" if order and k else ""
        ends = interval(low, high, "+.2f")
        texts.append(f"<b>{_LINES[role][0]}</b>, {where}<br>{_gated(k)}{last}<br>{change:+.2f} nats{ends}")
    return texts


def _gated(k: int) -> str:
    return f"{k} head{'s' * (k != 1)} gated off" if k else "no head gated off"
