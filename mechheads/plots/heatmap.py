"""Heatmaps of head scores, and of the roles of heads: layers down, heads across."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.heads import HeadId, Mlp
from mechheads.plots.parts.axes import count_ticks
from mechheads.plots.parts.colours import MISSING, SIGNED, colour_scale
from mechheads.plots.parts.figure import Panels
from mechheads.plots.parts.text import figure_title, level_name, plain
from mechheads.plots.parts.theme import Theme, themed
from mechheads.results.dataset import RANGE
from mechheads.results.mlps import has_mlps, mlp_scores
from mechheads.results.scores import HeadScores

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import xarray as xr

_APART = 0.5
"""How far the column of MLPs is from the heads, in cells."""
_WIDTH, _GAP_ACROSS, _GAP_DOWN = 1000, 44, 62


def heatmap(
    scores: HeadScores,
    *,
    title: str | None = None,
    select: Mapping[str, Any] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Heatmap of a score for every head, with layer 0 at the top; MLPs, if they were measured, have a column beside.

    The hover text shows the head's name, value and interval. Signed scores get a diverging scale centred at 0 with
    equal ends (red is positive, blue negative); scores without negative values get its red half. Heads without a score
    are gaps that show the grey background. An extra dimension gives one panel per label, all on one scale.

    Args:
        scores: the scores to draw.
        title: the title; by default the name of the scores.
        select: labels of extra dimensions to draw, as in ``HeadScores.select``.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if more than one extra dimension is left after ``select``.

    >>> import numpy as np
    >>> from mechheads.results.scores import HeadScores
    >>> scores = HeadScores.from_scores(np.eye(3), name="identity", unit="ones", kind="demo")
    >>> heatmap(scores).layout.title.text
    'identity'
    """
    import plotly.graph_objects as go

    scores = scores.select(**select) if select else scores
    if len(scores.extra_dims) > 1:
        first = scores.extra_dims[0]
        raise ValueError(
            f"a heatmap draws at most one extra dimension, but these scores have {list(scores.extra_dims)}; "
            f'select one, e.g. select={{"{first}": {scores.dataset[first].values.tolist()[0]!r}}}'
        )
    panels, cells = _panels(scores), scores.n_heads + (1 + _APART) * has_mlps(scores.dataset)
    columns = _columns(len(panels), ceil(cells))
    rows = ceil(len(panels) / columns)
    cell_width, cell_height = _cell(scores, cells, columns, rows)
    across, down = max(int(cell_width * cells), 240 // columns), max(cell_height * scores.n_layers, 160)
    grid = Panels(rows, columns, across, down, _GAP_ACROSS, _GAP_DOWN)
    line = 1 if min(cell_width, cell_height) >= 10 else 0
    figure = grid.figure(subplot_titles=[label for label, _ in panels] if scores.extra_dims else None)
    for i, (label, part) in enumerate(panels):
        for values, x, text in _blocks(part, label):
            figure.add_trace(
                go.Heatmap(
                    z=values,
                    x=x,
                    y=np.arange(part.n_layers),
                    text=text,
                    hovertemplate="%{text}<extra></extra>",
                    hoverongaps=False,
                    coloraxis="coloraxis",
                    xgap=line,
                    ygap=line,
                ),
                **grid.place(i),
            )
        if has_mlps(part.dataset):
            edge = part.n_heads - 0.5
            gap = {"x0": edge, "x1": edge + _APART, "y0": -0.5, "y1": part.n_layers - 0.5}
            figure.add_shape(**gap, fillcolor="white", line_width=0, layer="below", **grid.place(i))
    figure.update_xaxes(title_text="head", title_standoff=4, **_head_ticks(scores, across))
    figure.update_yaxes(**count_ticks(scores.n_layers, down), range=[scores.n_layers - 0.5, -0.5])
    figure.update_yaxes(title_text="layer", title_standoff=6, col=1)
    figure.update_layout(
        title=figure_title(scores.name if title is None else title),
        coloraxis=_colours(scores),
        plot_bgcolor=MISSING,
        width=grid.width + 170,
        height=grid.height + 150,
        margin={"l": 60, "r": 110, "t": 80, "b": 70},
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
        extra={"role": [role.capitalize() for role in roles]},
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
    """Values, places on the x axis and hover texts of the heads, and of the MLPs if they were measured."""
    yield scores.scores.values, np.arange(scores.n_heads), hover(scores, label)
    if (of_mlps := mlp_scores(scores.dataset)) is not None:
        columns = of_mlps.expand_dims("head", axis=1)
        text = _texts(columns, label, scores, lambda layer, _: str(Mlp(layer)))
        yield columns["score"].values, np.array([scores.n_heads + _APART]), text


def _head_ticks(scores: HeadScores, across: int) -> dict[str, Any]:
    """The ticks of heads, and of the column of MLPs."""
    ticks = count_ticks(scores.n_heads, across)
    if not has_mlps(scores.dataset):
        return ticks
    heads = ticks["tickvals"]
    return ticks | {"tickvals": [*heads, scores.n_heads + _APART], "ticktext": [*map(str, heads), "MLP"]}


def _columns(n_panels: int, n_heads: int) -> int:
    narrowest = max(160, 7 * n_heads)
    return min(n_panels, max(1, (_WIDTH + _GAP_ACROSS) // (narrowest + _GAP_ACROSS)))


def _cell(scores: HeadScores, cells: float, columns: int, rows: int) -> tuple[int, int]:
    """Width and height of a cell in pixels: large for small models, and never below 7."""
    across = (_WIDTH - (columns - 1) * _GAP_ACROSS) // columns // cells
    down = (720 if rows == columns == 1 else 380) // scores.n_layers
    return int(np.clip(across, 7, 44 if columns == 1 else 24)), int(np.clip(down, 7, 34))


def _colours(scores: HeadScores) -> dict[str, Any]:
    of_mlps = mlp_scores(scores.dataset)
    values = np.concatenate(
        [scores.scores.values.ravel(), *([] if of_mlps is None else [of_mlps["score"].values.ravel()])]
    )
    values = values[np.isfinite(values)]
    signed = bool((values < 0).any())
    furthest = float(np.abs(values).max(initial=0)) or 1.0
    scale = SIGNED if signed else SIGNED[len(SIGNED) // 2 :]
    return {
        "colorscale": colour_scale(scale),
        "cmin": -furthest if signed else 0.0,
        "cmax": furthest,
        "colorbar": {"title": {"text": plain(scores.unit)}, "thickness": 14},
    }


def hover(scores: HeadScores, label: str) -> list[list[str]]:
    """The hover text of each head: its name, the label, value, interval and q."""
    return _texts(scores.dataset, label, scores, lambda layer, head: str(HeadId(layer, head)))


def _texts(data: xr.Dataset, label: str, scores: HeadScores, name: Callable[[int, int], str]) -> list[list[str]]:
    """The hover text of each cell, from the statistics in ``data`` over layers and columns."""
    unit = plain(scores.unit)
    statistics = [data[each].values for each in ("score", "ci_low", "ci_high", "q_value")]
    ranges = [data[end].values if end in data else None for end in RANGE]

    def one(layer: int, column: int) -> str:
        score, low, high, q = (float(array[layer, column]) for array in statistics)
        lines = [f"<b>{name(layer, column)}</b>" + (f" {label}" if label else ""), f"{score:.4g} {unit}"]
        if isfinite(low) and isfinite(high):
            lines.append(f"{level_name(scores.level)} {low:.4g} to {high:.4g}")
        low, high = (np.nan if array is None else float(array[layer, column]) for array in ranges)
        if isfinite(low) and isfinite(high):
            lines.append(f"range of 2 clusters {low:.4g} to {high:.4g}")
        if isfinite(q):
            lines.append(f"q = {q:.3g}")
        return "<br>".join(lines)

    n_layers, columns = statistics[0].shape
    return [[one(layer, column) for column in range(columns)] for layer in range(n_layers)]
