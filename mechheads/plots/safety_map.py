"""Safety map: the heads with the largest effect on a model's answers to requests, by layer and head number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.plots.parts.axes import FRAME, count_ticks
from mechheads.plots.parts.colours import colour_scale
from mechheads.plots.parts.figure import Panels
from mechheads.plots.parts.notes import UNMARKED, add_note
from mechheads.plots.parts.text import figure_title, plain

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mechheads.results.scores import HeadScores

_NAMES = {
    "undifferentiated": "Undifferentiated Attention",
    "scaling": "Scaling Contribution",
    "zero": "zero ablation",
    "mean": "mean ablation",
    "resample": "resample ablation",
}
_SCORES = {"ships": ("Ships", "nats"), "generalized_ships": ("Generalized Ships", "degrees")}
_MARKS = (("circle", 26), ("x", 13), ("square-open", 25), ("diamond-open", 25), ("triangle-up-open", 29))
"""Symbol and size of each series. Drawn in this order, the markers of one head are all visible."""
_COLOURS = ("#f5c542", "#f4873f", "#dd4a4a", "#b3305f", "#5c1a6b")
_GAP_ACROSS, _GAP_DOWN, _WIDEST = 66, 84, 1120


@dataclass(frozen=True)
class _Series:
    """Scores that are drawn with one marker: names for the legend and the hover text, and the heads to show."""

    name: str
    about: str
    scores: HeadScores
    top: pd.DataFrame


def safety_map(
    scores: HeadScores | Sequence[HeadScores], *, k: int | None = None, title: str | None = None
) -> go.Figure:
    """Map of the ``k`` heads with the largest score, layers across and heads up, coloured by Generalized Ships.

    Undifferentiated Attention is drawn as circles, Scaling Contribution as crosses, and zero, mean and resample
    ablation as squares, diamonds and triangles. A head in the top ``k`` of several ablations has several markers. The
    hover text shows the head, its rank, scores and intervals, and how often it is in the top ``k`` when the requests
    are resampled.

    Args:
        scores: the result of ``mh.safety_heads`` for one ablation, or a list of results for several.
        k: the number of heads from each result; by default, the ``k`` given to ``mh.safety_heads``.
        title: the title; by default made from ``k`` and the model.

    Raises:
        ValueError: if scores are of another kind, repeat an ablation, or are of different models.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"], progress=False)
    >>> len(mh.plots.safety_map(safety).data[0].x)
    2
    """
    by_ablation = _by_ablation(list(scores) if isinstance(scores, Sequence) else [scores])
    model = next(iter(by_ablation.values())).provenance.get("model", "the model")
    marks = {_NAMES[ablation]: mark for ablation, mark in zip(_NAMES, _MARKS, strict=True)}
    series = [_Series(_NAMES[a], _NAMES[a], one, _top(one, k)) for a, one in by_ablation.items()]
    heading = f"Top {max(len(one.top) for one in series)} safety heads of {model}"
    return _draw({"": series}, marks, heading if title is None else title)


def safety_grid(
    panels: Mapping[str, Mapping[str, HeadScores] | str],
    *,
    k: int | None = None,
    title: str | None = None,
    columns: int | None = None,
) -> go.Figure:
    """Several panels of ``safety_map`` on one scale, for example one per model or one per set of requests.

    The first series is drawn as circles, the others as crosses, squares, diamonds and triangles, the same in all
    panels. A head in the top ``k`` of several series has several markers, and its hover text covers all of them. Models
    of different sizes can share a panel: its axes cover the largest.

    Args:
        panels: for each panel and series, the result of ``mh.safety_heads``; names of ablations are written out.
            A text instead of the series, such as the reason why a model could not be read, is written in its panel.
        k: the number of heads from each series; by default, the ``k`` given to ``mh.safety_heads``.
        title: the title; by default made from ``k``.
        columns: the number of panels side by side, such as the number of sets of requests for each model; fewer if
            they do not fit. By default, as many as fit.

    Raises:
        ValueError: if there is nothing to draw, ``columns`` is below 1, there are more series than markers, or scores
            are of another kind.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"], progress=False)
    >>> [trace.name for trace in mh.plots.safety_grid({"three requests": found}).data]
    ['Undifferentiated Attention', 'Scaling Contribution']
    """
    read = _check_panels(panels)
    if columns is not None and columns < 1:
        raise ValueError(f"columns is {columns}; it must be at least 1")
    names = list(dict.fromkeys(_title(name) for panel in read.values() for name in panel))
    if len(names) > len(_MARKS):
        raise ValueError(
            f"panels has {len(names)} series, but there are only {len(_MARKS)} markers; draw fewer at once"
        )
    drawn = {
        _title(panel): [
            _Series(_title(name), _about(name, panel, one), one, _top(one, k)) for name, one in series.items()
        ]
        for panel, series in read.items()
    }
    heading = f"Top {max(len(one.top) for series in drawn.values() for one in series)} safety heads"
    placed = {_title(panel): drawn.get(_title(panel), str(why)) for panel, why in panels.items()}
    return _draw(placed, dict(zip(names, _MARKS, strict=False)), heading if title is None else title, columns)


def _by_ablation(scores: list[HeadScores]) -> dict[str, HeadScores]:
    if not scores:
        raise ValueError("scores is empty; give the result of mh.safety_heads")
    series: dict[str, HeadScores] = {}
    for one in scores:
        _check(repr(one.name), one)
        ablation = one.provenance.get("ablation")
        if ablation not in _NAMES:
            raise ValueError(f"{one.name!r} is for ablation {ablation!r}; it must be one of {', '.join(_NAMES)}")
        if ablation in series:
            raise ValueError(f"two of the scores are for ablation {ablation!r}; give one for each ablation")
        series[ablation] = one
    models = {(one.n_layers, one.n_heads, one.provenance.get("model")) for one in scores}
    if len(models) > 1:
        raise ValueError(f"the scores are of {len(models)} models; draw them with safety_grid")
    return series


def _check_panels(panels: Mapping[str, Mapping[str, HeadScores] | str]) -> dict[str, Mapping[str, HeadScores]]:
    """The panels that have series."""
    if not isinstance(panels, Mapping) or not panels:
        raise ValueError("panels must be {panel: {series: mh.safety_heads(...)}}, with at least one panel")
    read = {}
    for panel, series in panels.items():
        if isinstance(series, str):
            continue
        if not isinstance(series, Mapping) or not series:
            raise ValueError(f"panels[{panel!r}] must be {{series: mh.safety_heads(...)}}, with at least one series")
        for name, one in series.items():
            _check(f"panels[{panel!r}][{name!r}]", one)
        read[panel] = series
    if not read:
        raise ValueError("panels has only texts; give the result of mh.safety_heads for at least one panel")
    return read


def _check(where: str, scores: HeadScores) -> None:
    if scores.kind != "safety" or "generalized_ships" not in scores.dataset:
        raise ValueError(f"{where} has no Generalized Ships to colour by; give the result of mh.safety_heads")


def _title(name: str) -> str:
    return _NAMES.get(name, str(name))


def _about(series: str, panel: str, scores: HeadScores) -> str:
    model = scores.provenance.get("model", panel)
    return "<br>".join(dict.fromkeys(plain(_title(name)) for name in (panel, series, model)))


def _top(scores: HeadScores, k: int | None) -> pd.DataFrame:
    """The first ``k`` heads, with both scores, intervals and ``in_top``, if the dataset has them."""
    top = scores.top(scores.provenance.get("k", 10) if k is None else k)
    at = (top["layer"].to_numpy(), top["head"].to_numpy())
    names = [f"{name}{end}" for name in _SCORES for end in ("", "_low", "_high")]
    return top.assign(**{n: scores.dataset[n].values[at] for n in [*names, "in_top"] if n in scores.dataset})


def _draw(
    panels: Mapping[str, Sequence[_Series] | str],
    marks: Mapping[str, tuple[str, int]],
    title: str,
    columns: int | None = None,
) -> go.Figure:
    """A figure with one panel for each entry of ``panels``, which maps headings to series, or to a text."""
    every = [one for series in panels.values() if not isinstance(series, str) for one in series]
    n_layers = max(one.scores.n_layers for one in every)
    n_heads = max(one.scores.n_heads for one in every)
    grid = _place_panels(len(panels), n_layers, n_heads, columns)
    figure = grid.figure(subplot_titles=[plain(name) for name in panels])
    scale = float(np.clip(min(grid.panel_width / n_layers, grid.panel_height / n_heads) / 20, 0.7, 1))
    figure.update_annotations(font_size=15)
    named: set[str] = set()
    for i, series in enumerate(panels.values()):
        if isinstance(series, str):
            figure.update_xaxes(**FRAME, **UNMARKED, **grid.place(i))
            figure.update_yaxes(**FRAME, **UNMARKED, **grid.place(i))
            add_note(figure, series, grid.place(i), (grid.panel_width, grid.panel_height))
            continue
        ordered = sorted(series, key=lambda one: list(marks).index(one.name))
        for one, texts in zip(ordered, _hover(ordered), strict=True):
            symbol, size = marks[one.name]
            trace = _markers(one, texts, symbol, size * scale)
            trace.showlegend = one.name not in named
            named.add(one.name)
            figure.add_trace(trace, **grid.place(i))
        across, up = max(one.scores.n_layers for one in series), max(one.scores.n_heads for one in series)
        figure.update_xaxes(**_axis(across, grid.panel_width, 24), title_text="Layer", **grid.place(i))
        figure.update_yaxes(**_axis(up, grid.panel_height, 16), **grid.place(i))
        if grid.place(i)["col"] == 1:
            figure.update_yaxes(title_text="Head", **grid.place(i))
    figure.update_xaxes(title_standoff=4)
    figure.update_yaxes(title_standoff=6)
    headings = 28 * any(panels)
    legend = 22 * _legend_rows(named, grid.width) + 12
    top = 56 + legend + headings
    figure.update_layout(
        title=figure_title(title) | {"y": 1, "yanchor": "top", "pad": {"t": 22}},
        coloraxis=_colours(np.concatenate([one.top["generalized_ships"].to_numpy() for one in every]), grid.height),
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + (headings + 6) / grid.height,
            "yanchor": "bottom",
            "itemsizing": "trace",
        },
        showlegend=True,
        plot_bgcolor="white",
        font={"color": "#222222"},
        width=grid.width + 190,
        height=grid.height + top + 60,
        margin={"l": 60, "r": 130, "t": top, "b": 60},
    )
    return figure


def _markers(series: _Series, texts: Sequence[str], symbol: str, size: float) -> go.Scatter:
    """A marker at each head of a series."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=series.top["layer"].to_numpy(),
        y=series.top["head"].to_numpy(),
        mode="markers",
        name=plain(series.name),
        legendgroup=series.name,
        marker={
            "symbol": symbol,
            "size": size,
            "color": series.top["generalized_ships"].to_numpy(),
            "coloraxis": "coloraxis",
            "line": {"width": 2.5 if symbol.endswith("open") else 1.3, "color": "white"},
        },
        text=texts,
        hovertemplate="%{text}<extra></extra>",
    )


def _place_panels(n_panels: int, n_layers: int, n_heads: int, columns: int | None) -> Panels:
    """As many panels side by side as fit, large for small models."""
    if n_panels == 1:
        return Panels(1, 1, 710, int(np.clip(34 * n_heads, 300, 900)), _GAP_ACROSS, _GAP_DOWN)
    fitting = max(1, (_WIDEST + _GAP_ACROSS) // (max(320, 7 * n_layers) + _GAP_ACROSS))
    columns = min(fitting, n_panels, columns or (2 if n_panels == 4 else n_panels))
    widest = (_WIDEST - (columns - 1) * _GAP_ACROSS) // columns
    width, height = min(widest, max(380, 24 * n_layers)), int(np.clip(18 * n_heads, 240, 560))
    return Panels(ceil(n_panels / columns), columns, width, height, _GAP_ACROSS, _GAP_DOWN)


def _legend_rows(names: set[str], width: float) -> int:
    """The number of legend rows: one if all names fit, otherwise in columns as wide as the longest name."""
    widths = [6.2 * len(name) + 45 for name in names]
    return 1 if sum(widths) <= width else ceil(len(names) / max(1, width // max(widths)))


def _axis(n: int, pixels: int, most: int) -> dict[str, Any]:
    """An axis of ``n`` whole numbers, at most ``most`` of them labelled, with room for the markers at its ends."""
    room = max(0.7, 18 * n / pixels)
    return count_ticks(n, min(pixels, 18 * most)) | {
        "range": [-room, n - 1 + room],
        "showgrid": True,
        "gridcolor": "#e8e8e8",
        **FRAME,
    }


def _colours(degrees: np.ndarray, height: float) -> dict[str, Any]:
    top = float(np.nanmax(degrees)) if np.isfinite(degrees).any() else 1.0
    return {
        "colorscale": colour_scale(_COLOURS),
        "cmin": 0.0,
        "cmax": top or 1.0,
        "colorbar": {
            "title": {"text": "Generalized<br>Ships (degrees)"},
            "thickness": 14,
            "len": min(height, 420),
            "lenmode": "pixels",
            "y": 1,
            "yanchor": "top",
        },
    }


def _hover(series: Sequence[_Series]) -> list[list[str]]:
    """The hover texts of each series, by head: the numbers of this series, then of the panel's other series."""
    texts = [
        {
            (row["layer"], row["head"]): _describe(one, rank, row)
            for rank, row in enumerate(one.top.to_dict("records"), 1)
        }
        for one in series
    ]
    return [
        ["<br><br>".join([text, *(b[head] for b in texts if b is not own and head in b)]) for head, text in own.items()]
        for own in texts
    ]


def _describe(series: _Series, rank: int, row: Mapping[Any, Any]) -> str:
    scores = series.scores
    ranking = scores.provenance.get("score", "ships")
    lines = [f"<b>L{row['layer']}H{row['head']}</b>, rank {rank}", series.about]
    for score in sorted(_SCORES, key=lambda name: name != ranking):
        ends = ("score", "ci_low", "ci_high") if score == ranking else (score, f"{score}_low", f"{score}_high")
        if ends[0] in row:
            lines.append(_number(*_SCORES[score], *(row[end] for end in ends), level=scores.level))
    if isfinite(row.get("in_top", np.nan)):
        lines.append(f"in the top {scores.provenance['k']} of {row['in_top']:.0%} of resamples")
    return "<br>".join(lines)


def _number(name: str, unit: str, value: float, low: float, high: float, *, level: float | None) -> str:
    if not isfinite(value):
        return f"{name} not defined"
    text = f"{name} {value:.4g} {unit}"
    if not (isfinite(low) and isfinite(high)):
        return text
    return f"{text} ({'interval' if level is None else f'{100 * level:g}%'} {low:.4g} to {high:.4g})"
