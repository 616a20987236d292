"""Heatmaps: of scores and roles by layer and head; of paths from senders to receivers; of how far views agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from mechheads.heads import HeadId, Mlp
from mechheads.messages.arguments import check_at_least
from mechheads.plots.parts import (
    MISSING,
    SIGNED,
    Panels,
    Theme,
    chances,
    colour_axis,
    count_ticks,
    figure_of,
    figure_title,
    heat_trace,
    interval,
    level_name,
    plain,
    themed,
)
from mechheads.results.dataset import RANGE, STATISTICS
from mechheads.results.evidence import excludes_null, has_null, n_prompts, null_of
from mechheads.results.kinds import sample_of
from mechheads.results.mlps import has_mlps, mlp_scores
from mechheads.results.scores import HeadScores
from mechheads.results.words import heading

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go
    import xarray as xr

_APART = 0.5
"""How far the row of MLPs is from the heads, in cells."""
_WIDTH, _GAP_ACROSS, _GAP_DOWN = 1000, 44, 62
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
    """Heatmap of a score for every head, layers across and heads up; MLPs, if they were measured, have a row above.

    The hover text shows the head's name, value and interval. Signed scores get a diverging scale centred at 0 with
    equal ends (red is positive, blue negative); scores without negative values get its red half. Heads without a score
    are gaps that show the grey background. A dot marks heads whose interval excludes the score of a head that does
    nothing; in a single panel, the largest of these heads are named, or of all if there is no test. An extra
    dimension gives one panel per label, all on one scale.

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
    panels, cells = _panels(scores), scores.n_heads + (1 + _APART) * has_mlps(scores.dataset)
    columns = _columns(len(panels), scores.n_layers)
    rows = ceil(len(panels) / columns)
    cell_width, cell_height = _cell(scores, cells, columns, rows)
    across, up = max(cell_width * scores.n_layers, 240 // columns), max(int(cell_height * cells), 160)
    grid = Panels(rows, columns, across, up, _GAP_ACROSS, _GAP_DOWN)
    line = 1 if min(cell_width, cell_height) >= 10 else 0
    figure = grid.figure(subplot_titles=[label for label, _ in panels] if scores.extra_dims else None)
    marks = [_marked(part) for _, part in panels]
    for i, (label, part) in enumerate(panels):
        for values, y, text in _blocks(part, label):
            figure.add_trace(heat_trace(values.T, np.arange(part.n_layers), y, np.array(text).T, line), **grid.place(i))
        if has_mlps(part.dataset):
            edge = part.n_heads - 0.5
            gap = {"x0": -0.5, "x1": part.n_layers - 0.5, "y0": edge, "y1": edge + _APART}
            figure.add_shape(**gap, fillcolor="white", line_width=0, layer="below", **grid.place(i))
        if marks[i].any():
            size = int(np.clip(min(cell_width, cell_height) - 3, 2, 5))
            figure.add_trace(
                _mark_trace(part, marks[i], size, not any(mark.any() for mark in marks[:i])), **grid.place(i)
            )
    if not scores.extra_dims:
        _name_heads(figure, scores, marks[0], (across / scores.n_layers, up / cells))
    figure.update_xaxes(title_text="Layer", title_standoff=4, **count_ticks(scores.n_layers, across))
    figure.update_xaxes(range=[-0.5, scores.n_layers - 0.5])
    figure.update_yaxes(**_head_ticks(scores, up), range=[-0.5, cells - 0.5])
    figure.update_yaxes(title_text="Head", title_standoff=6, col=1)
    width, said, legend = grid.width + 170, _about(scores), _LINE * any(mark.any() for mark in marks)
    top = 62 + 20 * bool(said) + legend + 22 * bool(scores.extra_dims)
    figure.update_layout(
        title=figure_title(heading(scores.name) if title is None else title)
        | {"y": 1, "yanchor": "top", "pad": {"t": 16}}
        | ({"subtitle": {"text": said, "font": {"size": 13, "color": "#777777"}}} if said else {}),
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


def _about(scores: HeadScores) -> str:
    """The model and how many prompts, pairs or requests there were, as far as they are known."""
    n = n_prompts(scores) or scores.provenance.get("n_prompts", 0)
    known = [str(scores.provenance.get("model", "")), f"{n} {sample_of(scores.kind)}{'s' * (n != 1)}" if n else ""]
    return plain(", ".join(filter(None, known)))


def _marked(scores: HeadScores) -> Bool[np.ndarray, "layer head"]:
    """The heads whose interval excludes the null; none if scores were not tested against one."""
    return excludes_null(scores) & np.isfinite(scores.dataset["ci_low"].values) & has_null(scores)


def _mark_trace(scores: HeadScores, marked: Bool[np.ndarray, "layer head"], size: int, first: bool) -> go.Scatter:
    """A dot at each marked head."""
    layers, heads = np.nonzero(marked)
    return _dot_trace(layers, heads, size, f"{level_name(scores.level)} excludes {null_of(scores):g}", first)


def _name_heads(
    figure: go.Figure, scores: HeadScores, marked: Bool[np.ndarray, "layer head"], cell: tuple[float, float]
) -> None:
    """Write the names of the largest of these heads beside them, where no name covers another or a large head.

    ``cell`` has the width and height of a cell in pixels. Names without a free place are left out.
    """
    size, tested = np.nan_to_num(np.abs(scores.scores.values)), has_null(scores)
    order = [divmod(int(i), scores.n_heads) for i in np.argsort(-size, axis=None, kind="stable")]
    heads = [head for head in order if size[head] > 0 and (marked[head] or not tested)][:_NAMED]
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
    score, low, high = (
        np.stack([one.dataset[name].values for one in roles.values()], -1) for name in ("score", "ci_low", "ci_high")
    )
    task = first.provenance.get("task")
    together = HeadScores.from_scores(
        score,
        name="Roles of heads" + (f", {task}" if task else ""),
        unit=first.unit,
        kind=first.kind,
        interval=(low, high),
        extra={"role": [role.capitalize() for role in roles]},
        provenance=first.provenance,
    )
    if all(end in one.dataset for end in RANGE for one in roles.values()):
        ranges = {end: np.stack([one.dataset[end].values for one in roles.values()], -1) for end in RANGE}
        together = HeadScores(together.dataset.assign({end: (together.scores.dims, r) for end, r in ranges.items()}))
    figure = heatmap(together, title=title, theme=theme)
    return figure.update_coloraxes(cmin=0, cmax=1)


def _panels(scores: HeadScores) -> list[tuple[str, HeadScores]]:
    if not scores.extra_dims:
        return [("", scores)]
    dim = scores.extra_dims[0]
    labels = scores.dataset[dim].values.tolist()
    shown = [plain(label) if isinstance(label, str) else f"{plain(dim)} {label}" for label in labels]
    return [(text, scores.select(**{dim: label})) for text, label in zip(shown, labels, strict=True)]


def _blocks(scores: HeadScores, label: str) -> Iterator[tuple[np.ndarray, np.ndarray, list[list[str]]]]:
    """Values, places on the y axis and hover texts of the heads, and of the MLPs if they were measured."""
    yield scores.scores.values, np.arange(scores.n_heads), hover(scores, label)
    if (of_mlps := mlp_scores(scores.dataset)) is not None:
        columns = of_mlps.expand_dims("head", axis=1)
        text = _texts(columns, label, scores, lambda layer, _: str(Mlp(layer)))
        yield columns["score"].values, np.array([scores.n_heads + _APART]), text


def _head_ticks(scores: HeadScores, up: int) -> dict[str, Any]:
    """The ticks of heads, and of the row of MLPs."""
    ticks = count_ticks(scores.n_heads, up)
    if not has_mlps(scores.dataset):
        return ticks
    heads = ticks["tickvals"]
    return ticks | {"tickvals": [*heads, scores.n_heads + _APART], "ticktext": [*map(str, heads), "MLP"]}


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
    of_mlps = mlp_scores(scores.dataset)
    values = np.concatenate(
        [scores.scores.values.ravel(), *([] if of_mlps is None else [of_mlps["score"].values.ravel()])]
    )
    values = values[np.isfinite(values)]
    signed = bool((values < 0).any())
    furthest = float(np.abs(values).max(initial=0)) or 1.0
    scale = SIGNED if signed else SIGNED[len(SIGNED) // 2 :]
    return colour_axis(scale, -furthest if signed else 0.0, furthest, plain(scores.unit))


def hover(scores: HeadScores, label: str) -> list[list[str]]:
    """The hover text of each head: its name, the label, value, interval, family p and q."""
    return _texts(scores.dataset, label, scores, lambda layer, head: str(HeadId(layer, head)))


def _texts(data: xr.Dataset, label: str, scores: HeadScores, name: Callable[[int, int], str]) -> list[list[str]]:
    """The hover text of each cell, from the statistics in ``data`` over layers and columns."""
    unit = plain(scores.unit)
    statistics = [data[each].values for each in STATISTICS if each != "p_value"]
    ranges = [data[end].values if end in data else None for end in RANGE]

    def one(layer: int, column: int) -> str:
        score, low, high, q, p_family = (float(array[layer, column]) for array in statistics)
        lines = [f"<b>{name(layer, column)}</b>" + (f" {label}" if label else ""), f"{score:.4g} {unit}"]
        if isfinite(low) and isfinite(high):
            lines.append(f"{level_name(scores.level)} {low:.4g} to {high:.4g}")
        low, high = (np.nan if array is None else float(array[layer, column]) for array in ranges)
        if isfinite(low) and isfinite(high):
            lines.append(f"range of 2 clusters {low:.4g} to {high:.4g}")
        return "<br>".join([*lines, *chances(p_family, q)])

    n_layers, columns = statistics[0].shape
    return [[one(layer, column) for column in range(columns)] for layer in range(n_layers)]


_MATRIX_WIDTH, _CELL_HEIGHT = 900, 26


def path_map(
    scores: HeadScores,
    *,
    top: int = 20,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmap of the effect of each sender on each receiver, for the strongest senders.

    Senders go down, sorted by their largest absolute effect on any receiver; receivers go across in the order of the
    result. Colours are centred at 0 with equal ends, red for positive and blue for negative. A dot marks the cells
    whose interval excludes 0. The hover text shows the value and the interval. Cells without a score show the grey
    background.

    Args:
        scores: the result of ``mh.path_matrix``.
        top: the largest number of senders; senders that change nothing are left out.
        title: the title; by default the name of the scores.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if ``top`` is below 1, or the scores have no receivers or no sender that was measured.

    >>> import numpy as np
    >>> from mechheads.results.scores import HeadScores
    >>> effects = np.array([[[0.0, 0.2], [-1.0, 0.1]]])  # [layer, head, receiver]
    >>> to = {"receiver": ["final", "L1H0.q"]}
    >>> scores = HeadScores.from_scores(effects, name="paths", unit="logits", kind="path_matrix", extra=to)
    >>> list(mh.plots.path_map(scores).layout.yaxis.ticktext)
    ['L0H1', 'L0H0']
    """
    check_at_least(1, top=top)
    if scores.extra_dims != ("receiver",):
        raise ValueError(f"the scores ({scores.name!r}) have no receivers; give the result of mh.path_matrix")
    senders, measured = _strongest(scores, top)
    receivers = scores.dataset["receiver"].values.tolist()
    cell = int(np.clip(_MATRIX_WIDTH // len(receivers), 5, 72))
    figure = figure_of([_effects(scores, senders, cell), _dots(scores, senders, cell)])
    step = -(-14 // cell)
    figure.update_xaxes(
        title_text="receiver",
        range=[-0.5, len(receivers) - 0.5],
        tickvals=np.arange(0, len(receivers), step),
        ticktext=[plain(receiver) for receiver in receivers[::step]],
        tickangle=0 if cell * step >= 8 * max(map(len, receivers)) else -60,
    )
    figure.update_yaxes(
        title_text="sender" if len(senders) == measured else f"sender: the {len(senders)} strongest of {measured}",
        title_standoff=8,
        range=[len(senders) - 0.5, -0.5],
        tickvals=np.arange(len(senders)),
        ticktext=[str(HeadId(*divmod(sender, scores.n_heads))) for sender in senders.tolist()],
    )
    for axes in (figure.update_xaxes, figure.update_yaxes):
        axes(tickmode="array", ticklabelstandoff=4)
    furthest = float(np.nanmax(np.abs(_values(scores, "score", senders)))) or 1.0
    figure.update_layout(
        title=figure_title(heading(scores.name) if title is None else title),
        coloraxis=colour_axis(SIGNED, -furthest, furthest, plain(scores.unit)),
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "itemclick": False},
        plot_bgcolor=MISSING,
        width=max(cell * len(receivers), 280) + 220,
        height=max(_CELL_HEIGHT * len(senders), 160) + 200,
        margin={"l": 100, "r": 120, "t": 100, "b": 100},
    )
    return themed(figure, theme)


def _effects(scores: HeadScores, senders: np.ndarray, cell: int) -> go.Heatmap:
    """The effect of each sender on each receiver."""
    receivers = scores.dataset["receiver"].values.tolist()
    texts = [np.ravel(hover(scores.select(receiver=name), f"to {plain(name)}"))[senders] for name in receivers]
    values, places = _values(scores, "score", senders), (np.arange(len(receivers)), np.arange(len(senders)))
    return heat_trace(values, *places, np.array(texts).T, 1 if cell >= 10 else 0)


def _dots(scores: HeadScores, senders: np.ndarray, cell: int) -> go.Scatter:
    """A dot in each cell whose interval excludes 0."""
    rows, columns = np.nonzero((_values(scores, "ci_low", senders) > 0) | (_values(scores, "ci_high", senders) < 0))
    name = f"{level_name(scores.level)} excludes 0"
    return _dot_trace(columns, rows, min(6, max(cell - 2, 2)), name, bool(len(rows)))


def _dot_trace(x: np.ndarray, y: np.ndarray, size: int, name: str, in_legend: bool) -> go.Scatter:
    """Dots in cells, and what the legend says of them."""
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


def _values(scores: HeadScores, name: str, senders: np.ndarray) -> np.ndarray:
    """One of the statistics, [sender, receiver]."""
    values = scores.dataset[name].values
    return values.reshape(-1, values.shape[-1])[senders]


def _strongest(scores: HeadScores, top: int) -> tuple[np.ndarray, int]:
    """The senders to draw, as flat indices, the strongest first, and the number of senders that were measured."""
    effects = np.abs(scores.scores.values).reshape(scores.n_layers * scores.n_heads, -1)
    strength = np.nan_to_num(effects, nan=-1.0).max(1)
    measured, at_work = int((strength >= 0).sum()), int((strength > 0).sum())
    if not measured:
        raise ValueError(f"the scores ({scores.name!r}) have no sender that was measured: all are NaN")
    return np.argsort(-strength, kind="stable")[: max(1, min(top, at_work))], measured


_VIEW_WIDTH, _VIEW_HEIGHT, _FAINT = 86, 44, 0.25


def view_agreement(
    correlations: pd.DataFrame,
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Rank correlations of every two views: red if they order heads alike, blue if in opposite order.

    Pairs whose interval includes 0, or that have no interval, are pale with a grey number: the views may be unrelated.
    A cell is empty if no correlation is defined. The hover text shows the interval and the number of heads.

    Args:
        correlations: a row for every two views, such as ``Atlas.agreement()``: view, other, spearman, ci_low, ci_high
            and n.
        title: the title; by default a general one.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there are no rows, a column is missing, or two views occur twice.

    >>> import pandas as pd
    >>> row = {"view": "phi", "other": "patching", "spearman": 0.4, "ci_low": 0.1, "ci_high": 0.6, "n": 270}
    >>> mh.plots.view_agreement(pd.DataFrame([row])).data[0].z.tolist()
    [[0.4]]
    """
    pairs = _cells(correlations)
    names = list(dict.fromkeys(name for pair in pairs for name in pair))
    place = {name: i for i, name in enumerate(names)}
    sure, unsure = (np.full((len(names) - 1, len(names) - 1), np.nan) for _ in range(2))
    hover = np.full(sure.shape, "", dtype=object)
    for (one, other), (r, low, high, n) in pairs.items():
        column, row = sorted((place[one], place[other]))
        (sure if low > 0 or high < 0 else unsure)[row - 1, column] = r
        hover[row - 1, column] = _hover(one, other, r, low, high, n)
    shown = {"texttemplate": "%{z:.2f}"}
    figure = figure_of(
        [
            heat_trace(sure, None, None, hover, 2, **shown, textfont={"size": 13}),
            heat_trace(
                unsure, None, None, hover, 2, **shown, textfont={"size": 13, "color": "#8a8a8a"}, opacity=_FAINT
            ),
        ]
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
        width=n * _VIEW_WIDTH + 330,
        height=max(n * _VIEW_HEIGHT, 120) + 220,
        margin={"l": 200, "r": 130, "t": 80, "b": 140},
    )
