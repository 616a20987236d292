"""Heatmaps of scores and roles by layer and head, of paths from senders to receivers, of parts of attention scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Bool

from mechheads.heads import HeadId
from mechheads.plots.parts import (
    MISSING,
    SIGNED,
    Panels,
    Theme,
    colour_axis,
    count_ticks,
    figure_of,
    figure_title,
    heat_trace,
    interval,
    p_texts,
    plain,
    themed,
)
from mechheads.results.dataset import RANGE, STATISTICS
from mechheads.results.kinds import sample_of
from mechheads.results.metadata import n_prompts
from mechheads.results.scores import HeadScores
from mechheads.results.shown import heading

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.results.tables import TableResult

_WIDTH, _GAP_ACROSS, _GAP_DOWN = 1000, 44, 62
_FAMILY_P = 0.05
_DOTS = f"family p at most {_FAMILY_P:g}"
_NAMED = 5
"""The number of heads whose names are written into a figure of one panel."""
_LETTERS, _LINE = (44, 18), 16
"""Width and height of a name in pixels, and the height of a row of the legend."""


def heatmap(
    scores: HeadScores,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmap of a score for every head, layers across and heads up.

    The hover text shows the head's name, value and interval. Signed scores get a diverging scale centred at 0 with
    equal ends (red is positive, blue negative); scores without negative values get its red half. Heads without a score
    are gaps that show the grey background. A dot marks heads whose family p is at most 0.05, which needs at least six
    clusters of prompts; in a single panel, the largest heads of either sign are named. An extra dimension gives one
    panel per label, all on one scale.

    Args:
        scores: the scores to draw.
        title: the title; by default the name of the scores.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is more than one extra dimension.

    >>> import numpy as np
    >>> from mechheads.results.scores import HeadScores
    >>> scores = HeadScores.from_scores(np.eye(3), name="identity", unit="ones", kind="demo")
    >>> heatmap(scores).layout.title.text
    'Identity'
    """
    if len(scores.extra_dims) > 1:
        first = scores.extra_dims[0]
        raise ValueError(
            f"a heatmap draws at most one extra dimension, but these scores have {list(scores.extra_dims)}; "
            f"select a label of one, such as scores.select({first}={scores.dataset[first].values.tolist()[0]!r})"
        )
    panels, cells = _panels(scores), scores.n_heads
    columns = _columns(len(panels), scores.n_layers)
    rows = ceil(len(panels) / columns)
    cell_width, cell_height = _cell(scores, cells, columns, rows)
    across, up = max(cell_width * scores.n_layers, 240 // columns), max(int(cell_height * cells), 160)
    grid = Panels(rows, columns, across, up, _GAP_ACROSS, _GAP_DOWN)
    line = 1 if min(cell_width, cell_height) >= 10 else 0
    figure = grid.figure(subplot_titles=[label for label, _ in panels] if scores.extra_dims else None)
    marks = [part.dataset["p_family"].values <= _FAMILY_P for _, part in panels]
    for i, (label, part) in enumerate(panels):
        places, text = (np.arange(part.n_layers), np.arange(part.n_heads)), np.array(hover(part, label)).T
        figure.add_trace(heat_trace(part.scores.values.T, *places, text, line), **grid.place(i))
        if marks[i].any():
            size = int(np.clip(min(cell_width, cell_height) - 3, 2, 5))
            first = not any(mark.any() for mark in marks[:i])
            layers, heads = np.nonzero(marks[i])
            figure.add_trace(_dot_trace(layers, heads, size, _DOTS, first), **grid.place(i))
    if not scores.extra_dims:
        _name_heads(figure, scores, (across / scores.n_layers, up / cells))
    figure.update_xaxes(title_text="Layer", title_standoff=4, **count_ticks(scores.n_layers, across))
    figure.update_xaxes(range=[-0.5, scores.n_layers - 0.5])
    figure.update_yaxes(**count_ticks(scores.n_heads, up), range=[-0.5, cells - 0.5])
    figure.update_yaxes(title_text="Head", title_standoff=6, col=1)
    width, subtitle, legend = grid.width + 170, _subtitle(scores), _LINE * any(mark.any() for mark in marks)
    top = 62 + 20 * bool(subtitle) + legend + 22 * bool(scores.extra_dims)
    figure.update_layout(
        title=figure_title(heading(scores.name) if title is None else title)
        | {"y": 1, "yanchor": "top", "pad": {"t": 16}}
        | ({"subtitle": {"text": subtitle, "font": {"size": 13, "color": "#777777"}}} if subtitle else {}),
        coloraxis=_colours(scores),
        plot_bgcolor=MISSING,
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yanchor": "bottom",
            "itemclick": False,
            "y": 1 + (4 + 22 * bool(scores.extra_dims)) / grid.height,
        },
        width=width,
        height=grid.height + top + 70,
        margin={"l": 60, "r": 110, "t": top, "b": 70},
    )
    return themed(figure, theme)


def _subtitle(scores: HeadScores) -> str:
    """The model and the number of prompts, pairs or requests, if they are known."""
    n = n_prompts(scores) or scores.provenance.get("n_prompts", 0)
    known = [str(scores.provenance.get("model", "")), f"{n} {sample_of(scores.kind)}{'s' * (n != 1)}" if n else ""]
    return plain(", ".join(filter(None, known)))


def _name_heads(figure: go.Figure, scores: HeadScores, cell: tuple[float, float]) -> None:
    """Write the names of the largest heads beside them, where a place is free; ``cell`` is in pixels."""
    size = np.nan_to_num(np.abs(scores.scores.values))
    order = [divmod(int(i), scores.n_heads) for i in np.argsort(-size, axis=None, kind="stable")]
    heads = [head for head in order[:_NAMED] if size[head] > 0]
    ends, taken = (scores.n_layers * cell[0], scores.n_heads * cell[1]), []
    middle = {head: ((head[0] + 0.5) * cell[0], (head[1] + 0.5) * cell[1]) for head in order}
    large = [(*middle[head], *cell) for head in {*heads, *order[: 2 * _NAMED]} if size[head] > 0]
    across, up = (cell[0] + _LETTERS[0]) / 2 + 1, (cell[1] + _LETTERS[1]) / 2 + 1
    places = [(across, 0), (-across, 0), (0, up), (0, -up), *((x, y) for y in (up, -up) for x in (across, -across))]
    for head in heads:
        for dx, dy in places:
            box = (middle[head][0] + dx, middle[head][1] + dy, *_LETTERS)
            inside = all(box[i + 2] / 2 <= box[i] <= ends[i] - box[i + 2] / 2 for i in (0, 1))
            if inside and not any(_overlap(box, other) for other in (*taken, *large)):
                taken.append(box)
                at = {"x": head[0], "y": head[1], "xshift": dx, "yshift": dy}
                look = {"font": {"size": 11, "color": "#222222"}, "bgcolor": "white", "opacity": 0.85, "borderpad": 0}
                figure.add_annotation(text=str(HeadId(*head)), showarrow=False, **at, **look)
                break


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two boxes, each with its middle, width and height, share an area."""
    return all(abs(one[i] - other[i]) < (one[i + 2] + other[i + 2]) / 2 for i in (0, 1))


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
    names = [name for name in (*STATISTICS, *RANGE) if all(name in one.dataset for one in roles.values())]
    role = pd.Index([name.capitalize() for name in roles], name="role")
    together = xr.concat([one.dataset[names] for one in roles.values()], role).transpose("layer", "head", "role")
    task = first.provenance.get("task")
    title = "Roles of heads" + (f", {task}" if task else "") if title is None else title
    figure = heatmap(HeadScores(together.assign_attrs(first.dataset.attrs)), title=title, theme=theme)
    return figure.update_coloraxes(cmin=0, cmax=1)


def _panels(scores: HeadScores) -> list[tuple[str, HeadScores]]:
    if not scores.extra_dims:
        return [("", scores)]
    dim = scores.extra_dims[0]
    labels = scores.dataset[dim].values.tolist()
    shown = [plain(label) if isinstance(label, str) else f"{plain(dim)} {label}" for label in labels]
    return [(text, scores.select(**{dim: label})) for text, label in zip(shown, labels, strict=True)]


def _columns(n_panels: int, n_layers: int) -> int:
    narrowest = max(160, min(12 * n_layers, 440))
    return min(n_panels, max(1, (_WIDTH + _GAP_ACROSS) // (narrowest + _GAP_ACROSS)))


def _cell(scores: HeadScores, cells: float, columns: int, rows: int) -> tuple[int, int]:
    """Width and height of a cell in pixels: large for small models, at least 5 and 7, and not much higher than wide."""
    across = (_WIDTH - (columns - 1) * _GAP_ACROSS) // columns // scores.n_layers
    width = int(np.clip(across, 5, 44 if columns == 1 else 24))
    up = (720 if rows == columns == 1 else 380) // cells
    return width, int(np.clip(up, 7, min(34, max(7, 1.5 * width))))


def _colours(scores: HeadScores) -> dict[str, Any]:
    values = scores.scores.values[np.isfinite(scores.scores.values)]
    signed = bool((values < 0).any())
    furthest = float(np.abs(values).max(initial=0)) or 1.0
    scale = SIGNED if signed else SIGNED[len(SIGNED) // 2 :]
    return colour_axis(scale, -furthest if signed else 0.0, furthest, plain(scores.unit))


def hover(scores: HeadScores, label: str) -> list[list[str]]:
    """The hover text of each head: its name, the label, value, interval, family p and q."""
    data, unit = scores.dataset, plain(scores.unit)
    statistics = [data[each].values for each in STATISTICS if each != "p_value"]
    ranges = [data[end].values if end in data else None for end in RANGE]

    def one(layer: int, head: int) -> str:
        score, low, high, q, p_family = (float(array[layer, head]) for array in statistics)
        lines = [f"<b>{HeadId(layer, head)}</b>" + (f" {label}" if label else ""), f"{score:.4g} {unit}"]
        if isfinite(low) and isfinite(high):
            lines.append(f"{'' if scores.values is None else '95% '}interval {low:.4g} to {high:.4g}")
        low, high = (np.nan if array is None else float(array[layer, head]) for array in ranges)
        if isfinite(low) and isfinite(high):
            lines.append(f"range of 2 clusters {low:.4g} to {high:.4g}")
        return "<br>".join([*lines, *p_texts(p_family, q)])

    return [[one(layer, head) for head in range(scores.n_heads)] for layer in range(scores.n_layers)]


_MATRIX_WIDTH, _CELL_HEIGHT, _SENDERS = 900, 26, 20


def path_map(
    scores: HeadScores,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmap of the effect of each sender on each receiver, for the 20 strongest senders.

    Senders go down, sorted by their largest absolute effect on any receiver; those that change nothing are left out.
    Receivers go across in the order of the result. Colours are centred at 0 with equal ends, red for positive and blue
    for negative. A dot marks the cells whose family p is at most 0.05. The hover text shows the value and the interval.
    Cells without a score show the grey background.

    Args:
        scores: the result of ``mh.path_matrix``.
        title, theme: as in ``heatmap``.

    Raises:
        ValueError: if the scores have no receivers or no sender that was measured.

    >>> import numpy as np
    >>> from mechheads.results.scores import HeadScores
    >>> effects = np.array([[[0.0, 0.2], [-1.0, 0.1]]])  # [layer, head, receiver]
    >>> to = {"receiver": ["final", "L1H0.q"]}
    >>> scores = HeadScores.from_scores(effects, name="paths", unit="logits", kind="path_matrix", extra=to)
    >>> list(mh.plots.path_map(scores).layout.yaxis.ticktext)
    ['L0H1', 'L0H0']
    """
    if scores.extra_dims != ("receiver",):
        raise ValueError(f"the scores ({scores.name!r}) have no receivers; give the result of mh.path_matrix")
    senders, measured = _strongest(scores)
    score, p_family = (
        scores.dataset[name].values.reshape(-1, scores.dataset.sizes["receiver"])[senders]
        for name in ("score", "p_family")
    )
    receivers = scores.dataset["receiver"].values.tolist()
    texts = [np.ravel(hover(scores.select(receiver=name), f"to {plain(name)}"))[senders] for name in receivers]
    return _matrix(
        score,
        p_family <= _FAMILY_P,
        np.array(texts).T,
        [str(HeadId(*divmod(sender, scores.n_heads))) for sender in senders.tolist()],
        receivers,
        {
            "x": "receiver",
            "y": "sender" if len(senders) == measured else f"sender ({len(senders)} of {measured})",
            "colours": scores.unit,
            "dots": _DOTS,
            "title": heading(scores.name) if title is None else title,
        },
        theme,
    )


def pair_map(
    result: TableResult,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmap of how much each part of the query, together with each part of the keys, adds to an attention score.

    Parts of the query go down, parts of the keys across, each side with the largest means first and the sum of the
    other parts last. Colours are centred at 0 with equal ends, red for positive and blue for negative. The hover text
    shows the value and the interval.

    Args:
        result: the result of ``mh.behaviour.attention_attribution``.
        title, theme: as in ``heatmap``.

    >>> why = mh.behaviour.attention_attribution(model, [[*range(1000, 1010)] * 2], "L17H5", query=15, key=6)
    >>> len(mh.plots.pair_map(why).layout.yaxis.ticktext)
    9
    """
    table = result.table
    rows, columns = list(dict.fromkeys(table["query"])), list(dict.fromkeys(table["key"]))
    shape = len(rows), len(columns)
    score = table["score"].to_numpy().reshape(shape)
    cells = zip(*(table[name] for name in ("query", "key", "score", "ci_low", "ci_high")), strict=True)
    texts = [
        f"<b>{plain(q)}</b> and <b>{plain(k)}</b><br>{mean:.4g} {plain(result.unit)}{interval(least, most)}"
        for q, k, mean, least, most in cells
    ]
    names = {
        "x": "part of the keys",
        "y": "part of the query",
        "colours": result.unit,
        "dots": _DOTS,
        "title": heading(result.name) if title is None else title,
    }
    return _matrix(score, np.zeros(shape, dtype=bool), np.reshape(texts, shape), rows, columns, names, theme)


def _matrix(
    values: np.ndarray,
    marked: Bool[np.ndarray, "row column"],
    texts: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    names: Mapping[str, str],
    theme: Theme,
) -> go.Figure:
    """A heatmap of named rows and columns, a dot in each cell that is marked; ``names`` has the names of all parts."""
    cell, (n_rows, n_columns) = int(np.clip(_MATRIX_WIDTH // len(columns), 5, 72)), values.shape
    y, x = np.nonzero(marked)
    cells = heat_trace(values, np.arange(n_columns), np.arange(n_rows), texts, 1 if cell >= 10 else 0)
    figure = figure_of([cells, _dot_trace(x, y, min(6, max(cell - 2, 2)), names["dots"], bool(len(y)))])
    step = -(-14 // cell)
    figure.update_xaxes(
        title_text=names["x"],
        range=[-0.5, n_columns - 0.5],
        tickvals=np.arange(0, n_columns, step),
        ticktext=[plain(name) for name in columns[::step]],
        tickangle=0 if cell * step >= 8 * max(map(len, columns)) else -60,
    )
    figure.update_yaxes(
        title_text=names["y"],
        title_standoff=8,
        range=[n_rows - 0.5, -0.5],
        tickvals=np.arange(n_rows),
        ticktext=[plain(name) for name in rows],
    )
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(tickmode="array", ticklabelstandoff=4)
    furthest = float(np.nanmax(np.abs(values))) or 1.0
    figure.update_layout(
        title=figure_title(names["title"]),
        coloraxis=colour_axis(SIGNED, -furthest, furthest, plain(names["colours"])),
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "itemclick": False},
        plot_bgcolor=MISSING,
        width=max(cell * n_columns, 280) + 220,
        height=max(_CELL_HEIGHT * n_rows, 160) + 200,
        margin={"l": 100, "r": 120, "t": 100, "b": 100},
    )
    return themed(figure, theme)


def _dot_trace(x: np.ndarray, y: np.ndarray, size: int, name: str, in_legend: bool) -> go.Scatter:
    """Dots in cells, and their name in the legend."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": size, "color": "#444444", "line": {"width": 1, "color": "white"}},
        name=name,
        hoverinfo="skip",
        showlegend=in_legend,
    )


def _strongest(scores: HeadScores) -> tuple[np.ndarray, int]:
    """The senders to draw, as flat indices, the strongest first, and the number of senders that were measured."""
    effects = np.abs(scores.scores.values).reshape(scores.n_layers * scores.n_heads, -1)
    strength = np.nan_to_num(effects, nan=-1.0).max(1)
    measured, active = int((strength >= 0).sum()), int((strength > 0).sum())
    if not measured:
        raise ValueError(f"the scores ({scores.name!r}) have no sender that was measured: all are NaN")
    return np.argsort(-strength, kind="stable")[: max(1, min(_SENDERS, active))], measured
