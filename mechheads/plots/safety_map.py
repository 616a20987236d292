"""Safety map: the heads with the largest effect on a model's answers to requests, by layer and head number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.messages.arguments import check_at_least
from mechheads.plots.parts import FRAME, Panels, Theme, colour_axis, count_ticks, figure_title, interval, plain, themed
from mechheads.results.kinds import kind_of
from mechheads.results.metadata import refused_of
from mechheads.results.shown import ranks

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mechheads.results.scores import HeadScores


NAMES = {
    "undifferentiated": "Undifferentiated Attention",
    "scaling": "Scaling Contribution",
    "zero": "zero ablation",
    "mean": "mean ablation",
    "resample": "resample ablation",
}
SYMBOLS = (
    ("circle-open", 0.8),
    ("x-thin-open", 0.66),
    ("square-open", 0.8),
    ("diamond-open", 0.66),
    ("triangle-up-open", 0.72),
)
"""Symbol of each series, and its size relative to the place of a head. All are drawn with lines of one width, so that
none looks heavier than another, all markers of one head are visible, and markers of neighbours do not overlap."""
_LARGEST, _STROKE = 24, 0.13
"""The largest place of a head in pixels, and the width of lines relative to it."""
_COLOURS = ("#5c1a6b", "#b3305f", "#dd4a4a", "#f4873f", "#f5c542")
"""As in the paper: small angles are dark purple, large ones bright yellow."""
_SCORES = ("ships", "generalized_ships", "ships_contrast", "refusal_contribution", "refusal_attribution")
_GAP_ACROSS, _GAP_DOWN, _WIDEST, _LEAST, _BAR = 60, 72, 1180, 300, 76
_HEADING, _ENTRY, _LETTER = 19, 20, 7.4
"""The height of a line of a heading and of a legend's entry, and the width of a heading's letter, in pixels."""


def safety_map(
    scores: HeadScores | Sequence[HeadScores],
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Map of the ``k`` heads that ``mh.safety_heads`` gave, layers across and heads up, coloured by Generalized Ships.

    Undifferentiated Attention is drawn as circles, Scaling Contribution as crosses, and zero, mean and resample
    ablation as squares, diamonds and triangles; any other ablation gets an unused symbol. A head in the top ``k`` of
    several ablations has several markers. The hover text shows the head, its rank, scores and intervals, and how
    often it is in the top ``k`` when the requests are resampled.

    Args:
        scores: the result of ``mh.safety_heads`` for one ablation, or a list of results for several.
        title: the title; by default, the score, the model, and how many requests it refused.
        theme: as in ``heatmap``.

    Raises:
        ValueError: if scores are of another kind, repeat an ablation, or are of different models.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"])
    >>> len(mh.plots.safety_map(safety).data[0].x)
    2
    """
    by_ablation = _by_ablation(list(scores) if isinstance(scores, Sequence) else [scores])
    every = list(by_ablation.values())
    if title is None:
        title = f"{heads_title(every)} of {every[0].provenance.get('model', 'the model')}{_refusals(every)}"
    series = [Series(name, name, name, one, _top(one)) for name, one in by_ablation.items()]
    return themed(_draw({"": series}, title), theme)


def safety_grid(
    panels: Mapping[str, Mapping[str, HeadScores]],
    *,
    title: str | None = None,
    columns: int | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Several panels of ``safety_map``, for example one per model or one per set of requests.

    An ablation has its symbol of ``safety_map``; other series, such as models, are drawn as circles, crosses, squares,
    diamonds and triangles, the same in all panels. Each panel has a colour scale of its own, as in the paper. A head in
    the top ``k`` of several series has several markers, and its hover text covers all of them. Models of different
    sizes can share a panel: its axes cover the largest. Where it is known how many requests a model refuses, the
    heading says so; in panels of several models, the legend.

    Args:
        panels: for each panel and series, the result of ``mh.safety_heads``; names of ablations are written out.
        title: the title; by default, the score.
        columns: the number of panels side by side, such as the number of sets of requests for each model; fewer if
            they do not fit. By default, as many as fit.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is nothing to draw, ``columns`` is below 1, there are more series than markers, or scores
            are of another kind.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> scores = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"])
    >>> [trace.name for trace in mh.plots.safety_grid({"three requests": scores}).data if trace.showlegend]
    ['Undifferentiated Attention', 'Scaling Contribution']
    """
    _check_panels(panels)
    if columns is not None:
        check_at_least(1, columns=columns)
    of_models = not {name for panel in panels.values() for name in panel} <= NAMES.keys()
    drawn: dict[str, list[Series]] = {}
    for panel, scores in panels.items():
        heading = _title(panel) + ("" if of_models else _refusals(list(scores.values())))
        drawn[heading] = [
            Series(
                _title(name),
                _title(name) + _refusals([one]) * of_models,
                _hover_heading(name, panel, one),
                one,
                _top(one),
            )
            for name, one in scores.items()
        ]
    if title is None:
        title = heads_title([one for panel in panels.values() for one in panel.values()])
    return themed(_draw(drawn, title, columns), theme)


def heads_title(scores: Sequence[HeadScores]) -> str:
    """A title that names the scores by which the heads were ranked."""
    ranked = dict.fromkeys(kind_of(one.provenance.get("score", "ships")).label for one in scores)
    return f"Heads with the largest {' or '.join(ranked)}"


def _refusals(scores: Sequence[HeadScores]) -> str:
    """How many requests the one model of these scores refuses, in brackets; empty if it is not known."""
    counts = {refused_of(one.provenance.get("refused")) for one in scores}
    return f" ({counts.pop()})" if len(counts) == 1 and counts != {""} else ""


def _by_ablation(scores: list[HeadScores]) -> dict[str, HeadScores]:
    if not scores:
        raise ValueError("scores is empty; give the result of mh.safety_heads")
    series: dict[str, HeadScores] = {}
    for one in scores:
        _check(repr(one.name), one)
        ablation, ranking = str(one.provenance.get("ablation")), one.provenance.get("score", "")
        name = _title(ablation)
        if ranking == "refusal_attribution":  # several ablations rank the heads, one colours them
            name = f"{kind_of(ranking).label}; colours by {name}"
        if name in series:
            raise ValueError(f"two of the scores are for ablation {ablation!r}; give one for each ablation")
        series[name] = one
    models = {(one.n_layers, one.n_heads, one.provenance.get("model")) for one in scores}
    if len(models) > 1:
        raise ValueError(f"the scores are of {len(models)} models; draw them with safety_grid")
    return series


def _symbols(names: Sequence[str]) -> dict[str, tuple[str, float]]:
    """The symbol of each series: the symbol of its ablation, or an unused one."""
    if len(names) > len(SYMBOLS):
        raise ValueError(f"there are {len(names)} series, but only {len(SYMBOLS)} markers; draw fewer at once")
    known = zip(NAMES.values(), SYMBOLS, strict=True)
    own = {name: symbol for ablation, symbol in known for name in names if name.endswith(ablation)}
    free = iter(symbol for symbol in SYMBOLS if symbol not in own.values())
    return own | {name: next(free) for name in names if name not in own}


def _check_panels(panels: Mapping[str, Mapping[str, HeadScores]]) -> None:
    if not isinstance(panels, Mapping) or not panels:
        raise ValueError("panels must be {panel: {series: mh.safety_heads(...)}}, with at least one panel")
    for panel, series in panels.items():
        if not isinstance(series, Mapping) or not series:
            raise ValueError(f"panels[{panel!r}] must be {{series: mh.safety_heads(...)}}, with at least one series")
        for name, one in series.items():
            _check(f"panels[{panel!r}][{name!r}]", one)


def _check(where: str, scores: HeadScores) -> None:
    if scores.kind != "safety" or "generalized_ships" not in scores.dataset:
        raise ValueError(f"{where} has no Generalized Ships to colour by; give the result of mh.safety_heads")


def _title(name: str) -> str:
    return NAMES.get(name, str(name))


def _hover_heading(series: str, panel: str, scores: HeadScores) -> str:
    model = scores.provenance.get("model", panel)
    return "<br>".join(dict.fromkeys(plain(_title(name)) for name in (panel, series, model)))


def _top(scores: HeadScores) -> pd.DataFrame:
    """The first ``k`` heads, with both scores, intervals and ``in_top``, if the dataset has them."""
    top = scores.top(scores.provenance.get("k", 10))
    at = (top["layer"].to_numpy(), top["head"].to_numpy())
    names = [f"{name}{end}" for name in _SCORES for end in ("", "_low", "_high")]
    return top.assign(**{n: scores.dataset[n].values[at] for n in [*names, "in_top"] if n in scores.dataset})


def _draw(
    panels: Mapping[str, Sequence[Series]],
    title: str,
    columns: int | None = None,
) -> go.Figure:
    """A figure with one panel for each entry of ``panels``, which maps headings to series."""
    every = [one for series in panels.values() for one in series]
    symbols = _symbols(list(dict.fromkeys(one.name for one in every)))
    n_layers = max(one.scores.n_layers for one in every)
    n_heads = max(one.scores.n_heads for one in every)
    legend = _ENTRY * max(map(len, panels.values())) + 10
    widest = ceil(45 + 6.2 * max(len(one.label) for one in every))
    grid = _place_panels(len(panels), max(widest, 7 * n_layers), (n_layers, n_heads), legend, columns)
    headings = [wrap(name, int(grid.panel_width / _LETTER)) for name in panels]
    lines = max(map(len, headings))
    grid = replace(grid, gap_across=grid.gap_across + _BAR, gap_down=grid.gap_down + _HEADING * lines)
    figure = grid.figure(subplot_titles=["<br>".join(map(plain, heading)) for heading in headings])
    figure.update_annotations(font_size=14, yshift=4)
    heights = grid.panel_height - legend
    sides = ((grid.panel_width, n_layers), (heights, n_heads))
    place = min(_LARGEST, *(pixels / (n - 1 + 2 * _room(n, pixels)) for pixels, n in sides))
    line = max(1.2, _STROKE * place)
    styles = {
        name: {"symbol": symbol, "size": size * place, "line_width": line} for name, (symbol, size) in symbols.items()
    }
    for i, series in enumerate(panels.values()):
        ordered = sorted(series, key=lambda one: list(symbols).index(one.name))
        axis, key = _axis_name("coloraxis", i), _axis_name("legend", i)
        for one, texts in zip(ordered, hover_texts(ordered), strict=True):
            figure.add_trace(_markers(one, texts, axis).update(marker=styles[one.name]), **grid.place(i))
            figure.add_trace(_legend_entry(one, styles[one.name], key), **grid.place(i))
        across, up = max(one.scores.n_layers for one in series), max(one.scores.n_heads for one in series)
        figure.update_xaxes(
            **_axis(across, grid.panel_width, 24), title={"text": "Layer", "standoff": 4}, **grid.place(i)
        )
        vertical = _axis(up, heights, 16)
        low, high = vertical["range"]
        vertical["range"] = [low, high + (high - low) * legend / heights]
        figure.update_yaxes(**vertical, title={"text": "Head", "standoff": 6}, **grid.place(i))
        (_, right), (_, top) = _domains(figure, i)
        inside = {"x": right - 4 / grid.width, "y": top - 4 / grid.height, "xanchor": "right", "yanchor": "top"}
        border = {"borderwidth": 1, "bordercolor": "#d0d0d0"}
        figure.update_layout({key: {**inside, **border, "itemsizing": "trace", "tracegroupgap": 0}})
    above = 52 + _HEADING * lines
    figure.update_layout(
        title=figure_title(title) | {"y": 1, "yanchor": "top", "pad": {"t": 22}},
        width=grid.width + 60 + 16 + _BAR,
        height=grid.height + above + 56,
        margin={"l": 60, "r": 16 + _BAR, "t": above, "b": 56},
    )
    for i, part in enumerate(panels.values()):
        degrees = np.concatenate([one.top["generalized_ships"].to_numpy() for one in part])
        figure.update_layout({_axis_name("coloraxis", i): _colours(degrees, _bar_beside(*_domains(figure, i), grid))})
    return figure


def _domains(figure: Any, i: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where the i-th panel begins and ends, across and up, as shares of all panels."""
    return figure.layout[_axis_name("xaxis", i)].domain, figure.layout[_axis_name("yaxis", i)].domain


def _axis_name(kind: str, i: int) -> str:
    """The name of an axis of the i-th panel in the layout of a figure."""
    return f"{kind}{i + 1 if i else ''}"


def _markers(series: Series, texts: Sequence[str], coloraxis: str) -> go.Scatter:
    """A marker at each head of a series."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=series.top["layer"].to_numpy(),
        y=series.top["head"].to_numpy(),
        mode="markers",
        name=plain(series.name),
        legendgroup=series.name,
        showlegend=False,
        marker={"color": series.top["generalized_ships"].to_numpy(), "coloraxis": coloraxis},
        text=texts,
        hovertemplate="%{text}<extra></extra>",
    )


def _legend_entry(series: Series, marker: dict[str, Any], legend: str) -> go.Scatter:
    """A trace for a panel's legend alone: the markers themselves have as many colours as heads."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        name=plain(series.label),
        legend=legend,
        legendgroup=series.name,
        showlegend=True,
        marker={"color": "#444444", **marker},
    )


def _place_panels(n_panels: int, least: int, size: tuple[int, int], legend: int, columns: int | None) -> Panels:
    """As many panels side by side as fit, at least ``least`` pixels wide, with room for a legend of this height."""
    n_layers, n_heads = size
    if n_panels == 1:
        return Panels(1, 1, 710, int(np.clip(34 * n_heads, 300, 900) + legend), _GAP_ACROSS, _GAP_DOWN)
    gap = _GAP_ACROSS + _BAR
    fitting = max(1, int((_WIDEST + gap) / (max(_LEAST, least) + gap)))
    columns = min(fitting, n_panels, columns or (2 if n_panels == 4 else n_panels))
    widest = (_WIDEST - (columns - 1) * gap) // columns
    width, height = min(widest, max(380, least, 24 * n_layers)), int(np.clip(18 * n_heads, 240, 560) + legend)
    return Panels(ceil(n_panels / columns), columns, width, height, _GAP_ACROSS, _GAP_DOWN)


def _room(n: int, pixels: int) -> float:
    """The room for the markers at each end of an axis, in places of heads."""
    return max(0.7, 18 * n / pixels)


def _axis(n: int, pixels: int, most: int) -> dict[str, Any]:
    """An axis of ``n`` whole numbers, at most ``most`` of them labelled, with room for the markers at its ends."""
    room = _room(n, pixels)
    return count_ticks(n, min(pixels, 18 * most)) | {
        "range": [-room, n - 1 + room],
        "showgrid": True,
        **FRAME,
    }


def _bar_beside(across: Sequence[float], up: Sequence[float], grid: Panels) -> dict[str, Any]:
    """The place of a colour bar to the right of the panel with these domains."""
    length = up[1] - up[0]
    place = {"x": across[1] + 8 / grid.width, "xpad": 0, "y": up[0] + length / 2, "len": length}
    return {"thickness": 12, "ypad": 0, **place}


def _colours(degrees: np.ndarray, bar: dict[str, Any]) -> dict[str, Any]:
    top = float(np.nanmax(degrees)) if np.isfinite(degrees).any() else 1.0
    axis = colour_axis(_COLOURS, 0.0, top or 1.0, "Generalized Ships (degrees)", **bar)
    axis["colorbar"]["title"]["side"] = "right"
    return axis


@dataclass(frozen=True)
class Series:
    """Scores that are drawn with one marker; ``label`` is for the legend, ``heading`` for hover texts."""

    name: str
    label: str
    heading: str
    scores: HeadScores
    top: pd.DataFrame


def hover_texts(series: Sequence[Series]) -> list[list[str]]:
    """The hover texts of each series, by head: the numbers of this series, then of the panel's other series."""
    texts = [
        {
            (row["layer"], row["head"]): _describe(one, rank, row)
            for rank, row in zip(ranks(one.top["score"]), one.top.to_dict("records"), strict=True)
        }
        for one in series
    ]
    return [
        ["<br><br>".join([text, *(b[head] for b in texts if b is not own and head in b)]) for head, text in own.items()]
        for own in texts
    ]


def _describe(series: Series, rank: int, row: Mapping[Any, Any]) -> str:
    scores = series.scores
    ranking = scores.provenance.get("score", "ships")
    lines = [f"<b>L{row['layer']}H{row['head']}</b>, rank {rank}", series.heading]
    for score in sorted(_SCORES, key=lambda name: name != ranking):
        ends = ("score", "ci_low", "ci_high") if score == ranking else (score, f"{score}_low", f"{score}_high")
        if ends[0] in row:
            value, low, high = (row[end] for end in ends)
            number = f" {value:.4g} {kind_of(score).unit}{interval(low, high, '.4g')}" if isfinite(value) else ""
            lines.append(kind_of(score).label + number)
    if isfinite(row.get("in_top", np.nan)):
        lines.append(f"in_top ({scores.provenance['k']}) {row['in_top']:.2f}")
    return "<br>".join(lines)
