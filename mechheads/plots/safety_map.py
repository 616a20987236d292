"""Safety map: the heads with the largest effect on a model's answers to requests, by layer and head number."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.messages.arguments import check_at_least
from mechheads.plots.parts import FRAME, Panels, Theme, colour_axis, count_ticks, figure_title, plain, themed

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
_SYMBOLS = (
    ("circle-open", 0.8),
    ("x-thin-open", 0.66),
    ("square-open", 0.8),
    ("diamond-open", 0.66),
    ("triangle-up-open", 0.72),
)
"""Symbol of each series, and its size relative to the place of a head. All are drawn with lines of one width: none
weighs more than another, all markers of one head are visible, and those of neighbours do not overlap."""
_LARGEST, _STROKE = 24, 0.13
"""The largest place of a head in pixels, and the width of lines relative to it."""
_COLOURS = ("#f5c542", "#f4873f", "#dd4a4a", "#b3305f", "#5c1a6b")
_GAP_ACROSS, _GAP_DOWN, _WIDEST, _BAR = 66, 84, 1120, 56


def safety_map(
    scores: HeadScores | Sequence[HeadScores],
    *,
    k: int | None = None,
    title: str | None = None,
    theme: Theme = "light",
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
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if scores are of another kind, repeat an ablation, or are of different models.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"])
    >>> len(mh.plots.safety_map(safety).data[0].x)
    2
    """
    by_ablation = _by_ablation(list(scores) if isinstance(scores, Sequence) else [scores])
    model = next(iter(by_ablation.values())).provenance.get("model", "the model")
    names = {ablation: _name(ablation, by_ablation.get(ablation)) for ablation in _NAMES}
    symbols = {names[ablation]: symbol for ablation, symbol in zip(_NAMES, _SYMBOLS, strict=True)}
    series = [Series(names[a], names[a], one, _top(one, k)) for a, one in by_ablation.items()]
    most = max(len(one.top) for one in series)
    heading = f"Top {most} safety {_unit([one.scores for one in series])}s of {model}"
    figure = _draw({"": series}, symbols, heading if title is None else title)
    return themed(figure, theme)


def safety_grid(
    panels: Mapping[str, Mapping[str, HeadScores]],
    *,
    k: int | None = None,
    title: str | None = None,
    columns: int | None = None,
    own_scales: bool = False,
    theme: Theme = "light",
) -> go.Figure:
    """Several panels of ``safety_map``, for example one per model or one per set of requests.

    The first series is drawn as circles, the others as crosses, squares, diamonds and triangles, the same in all
    panels. A head in the top ``k`` of several series has several markers, and its hover text covers all of them. Models
    of different sizes can share a panel: its axes cover the largest.

    Args:
        panels: for each panel and series, the result of ``mh.safety_heads``; names of ablations are written out.
        k: the number of heads from each series; by default, the ``k`` given to ``mh.safety_heads``.
        title: the title; by default made from ``k``.
        columns: the number of panels side by side, such as the number of sets of requests for each model; fewer if
            they do not fit. By default, as many as fit.
        own_scales: give each panel a colour scale and a colour bar of its own, as in the paper. By default all panels
            share one, so that their colours can be compared.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is nothing to draw, ``columns`` is below 1, there are more series than markers, or scores
            are of another kind.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"])
    >>> [trace.name for trace in mh.plots.safety_grid({"three requests": found}).data if trace.showlegend is None]
    ['Undifferentiated Attention', 'Scaling Contribution']
    """
    _check_panels(panels)
    if columns is not None:
        check_at_least(1, columns=columns)
    names = list(dict.fromkeys(_title(name) for panel in panels.values() for name in panel))
    if len(names) > len(_SYMBOLS):
        raise ValueError(
            f"panels has {len(names)} series, but there are only {len(_SYMBOLS)} markers; draw fewer at once"
        )
    drawn = {
        _title(panel): [
            Series(_title(name), _hover_heading(name, panel, one), one, _top(one, k)) for name, one in series.items()
        ]
        for panel, series in panels.items()
    }
    every = [one for series in drawn.values() for one in series]
    heading = f"Top {max(len(one.top) for one in every)} safety {_unit([one.scores for one in every])}s"
    symbols = dict(zip(names, _SYMBOLS, strict=False))
    figure = _draw(drawn, symbols, heading if title is None else title, columns, own_scales)
    return themed(figure, theme)


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


def _name(ablation: str, scores: HeadScores | None) -> str:
    """What the legend says of an ablation; if heads are ranked by several, that it colours them only."""
    ranking = "" if scores is None else scores.provenance.get("score", "")
    if ranking != "refusal_attribution":
        return _NAMES[ablation]
    return f"{SCORES[ranking][0]}; colours by {_NAMES[ablation]}"


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
    return _NAMES.get(name, str(name))


def _hover_heading(series: str, panel: str, scores: HeadScores) -> str:
    model = scores.provenance.get("model", panel)
    return "<br>".join(dict.fromkeys(plain(_title(name)) for name in (panel, series, model)))


def _top(scores: HeadScores, k: int | None) -> pd.DataFrame:
    """The first ``k`` heads, with both scores, intervals and ``in_top``, if the dataset has them."""
    top = scores.top(scores.provenance.get("k", 10) if k is None else k)
    at = (top["layer"].to_numpy(), top["head"].to_numpy())
    names = [f"{name}{end}" for name in SCORES for end in ("", "_low", "_high")]
    return top.assign(**{n: scores.dataset[n].values[at] for n in [*names, "in_top"] if n in scores.dataset})


def _draw(
    panels: Mapping[str, Sequence[Series]],
    symbols: Mapping[str, tuple[str, float]],
    title: str,
    columns: int | None = None,
    own_scales: bool = False,
) -> go.Figure:
    """A figure with one panel for each entry of ``panels``, which maps headings to series."""
    every = [one for series in panels.values() for one in series]
    n_layers = max(one.scores.n_layers for one in every)
    n_heads = max(one.scores.n_heads for one in every)
    grid = _place_panels(len(panels), n_layers, n_heads, columns, _GAP_ACROSS + own_scales * _BAR)
    figure = grid.figure(subplot_titles=[plain(name) for name in panels])
    figure.update_annotations(font_size=15)
    sides = ((grid.panel_width, n_layers), (grid.panel_height, n_heads))
    place = min(_LARGEST, *(pixels / (n - 1 + 2 * _room(n, pixels)) for pixels, n in sides))
    line = max(1.2, _STROKE * place)
    styles = {
        name: {"symbol": symbol, "size": size * place, "line_width": line} for name, (symbol, size) in symbols.items()
    }
    named: set[str] = set()
    for i, series in enumerate(panels.values()):
        ordered = sorted(series, key=lambda one: list(symbols).index(one.name))
        for one, texts in zip(ordered, hover_texts(ordered), strict=True):
            trace = _markers(one, texts, _axis_name("coloraxis", i if own_scales else 0))
            trace.update(marker=styles[one.name])
            named.add(one.name)
            figure.add_trace(trace, **grid.place(i))
        across, up = max(one.scores.n_layers for one in series), max(one.scores.n_heads for one in series)
        figure.update_xaxes(**_axis(across, grid.panel_width, 24), title_text="Layer", **grid.place(i))
        figure.update_yaxes(**_axis(up, grid.panel_height, 16), **grid.place(i))
        if grid.place(i)["col"] == 1:
            figure.update_yaxes(title_text="Head", **grid.place(i))
    figure.update_xaxes(title_standoff=4)
    figure.update_yaxes(title_standoff=6)
    figure.add_traces([_legend_entry(name, style) for name, style in styles.items() if name in named])
    headings = 28 * any(panels)
    legend = 22 * _legend_rows(named, grid.width) + 12
    top = 56 + legend + headings
    figure.update_layout(
        title=figure_title(title) | {"y": 1, "yanchor": "top", "pad": {"t": 22}},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + (headings + 6) / grid.height,
            "yanchor": "bottom",
            "itemsizing": "trace",
        },
        showlegend=True,
        width=grid.width + 190,
        height=grid.height + top + 60,
        margin={"l": 60, "r": 130, "t": top, "b": 60},
    )
    angles = {i: [one.top["generalized_ships"].to_numpy() for one in part] for i, part in enumerate(panels.values())}
    if own_scales:
        for i, degrees in angles.items():
            axis = figure.layout[_axis_name("xaxis", i)], figure.layout[_axis_name("yaxis", i)]
            figure.update_layout(
                {_axis_name("coloraxis", i): _colours(np.concatenate(degrees), _bar_beside(*axis, grid))}
            )
    else:
        together = np.concatenate([degrees for part in angles.values() for degrees in part])
        figure.update_layout(coloraxis=_colours(together, _bar_of_all(grid.height)))
    return figure


def _unit(scores: Sequence[HeadScores]) -> str:
    """What was ablated as one: "head", or "key/value group" if it was so in all scores."""
    units = {one.provenance.get("unit", "head") for one in scores}
    return units.pop() if len(units) == 1 else "head or group"


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


def _legend_entry(name: str, marker: dict[str, Any]) -> go.Scatter:
    """A trace for the legend alone: the markers themselves have as many colours as heads."""
    import plotly.graph_objects as go

    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        name=plain(name),
        legendgroup=name,
        marker={"color": "#444444", **marker},
    )


def _place_panels(n_panels: int, n_layers: int, n_heads: int, columns: int | None, gap: int) -> Panels:
    """As many panels side by side as fit, large for small models, with a gap of so many pixels between them."""
    if n_panels == 1:
        return Panels(1, 1, 710, int(np.clip(34 * n_heads, 300, 900)), gap, _GAP_DOWN)
    fitting = max(1, (_WIDEST + gap) // (max(320, 7 * n_layers) + gap))
    columns = min(fitting, n_panels, columns or (2 if n_panels == 4 else n_panels))
    widest = (_WIDEST - (columns - 1) * gap) // columns
    width, height = min(widest, max(380, 24 * n_layers)), int(np.clip(18 * n_heads, 240, 560))
    return Panels(ceil(n_panels / columns), columns, width, height, gap, _GAP_DOWN)


def _legend_rows(names: Collection[str], width: float) -> int:
    """The number of legend rows: one if all names fit, otherwise in columns as wide as the longest name."""
    widths = [6.2 * len(name) + 45 for name in names]
    return 1 if sum(widths) <= width else ceil(len(names) / max(1, width // max(widths)))


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


def _bar_of_all(height: float) -> dict[str, Any]:
    """The place of the one colour bar, beside panels of this height in pixels."""
    return {
        "title": "Generalized<br>Ships (degrees)",
        "len": min(height, 420),
        "lenmode": "pixels",
        "y": 1,
        "yanchor": "top",
    }


def _bar_beside(across: Any, up: Any, grid: Panels) -> dict[str, Any]:
    """The place of a colour bar to the right of the panel with these axes."""
    length = up.domain[1] - up.domain[0]
    place = {"x": across.domain[1] + 6 / grid.width, "xpad": 0, "y": up.domain[0] + length / 2, "len": length}
    return {"title": "degrees", "thickness": 10, "ypad": 0, **place}


def _colours(degrees: np.ndarray, bar: dict[str, Any]) -> dict[str, Any]:
    top = float(np.nanmax(degrees)) if np.isfinite(degrees).any() else 1.0
    return colour_axis(_COLOURS, 0.0, top or 1.0, **bar)


SCORES = {
    "ships": ("Ships", "nats"),
    "generalized_ships": ("Generalized Ships", "degrees"),
    "refusal_contribution": ("Refusal Contribution", "nats"),
    "refusal_attribution": ("Refusal attribution", "nats"),
}
"""The name and the unit of each score."""


@dataclass(frozen=True)
class Series:
    """Scores that are drawn with one marker: names for the legend and the hover text, and the heads to show."""

    name: str
    heading: str
    scores: HeadScores
    top: pd.DataFrame


def hover_texts(series: Sequence[Series]) -> list[list[str]]:
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


def _describe(series: Series, rank: int, row: Mapping[Any, Any]) -> str:
    scores = series.scores
    ranking = scores.provenance.get("score", "ships")
    last = f"-{row['head'] + scores.together - 1}" if scores.together > 1 else ""
    lines = [f"<b>L{row['layer']}H{row['head']}{last}</b>, rank {rank}", series.heading]
    for score in sorted(SCORES, key=lambda name: name != ranking):
        ends = ("score", "ci_low", "ci_high") if score == ranking else (score, f"{score}_low", f"{score}_high")
        if ends[0] in row:
            lines.append(_number(*SCORES[score], *(row[end] for end in ends), level=scores.level))
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
