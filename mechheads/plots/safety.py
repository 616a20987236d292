"""The heads that a model's answers to requests hang on most, by layer and head."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.plots.axes import count_ticks
from mechheads.plots.text import plain

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mechheads.scores import HeadScores

_SYMBOLS = {"undifferentiated": ("circle", 20), "scaling": ("x", 10)}
_NAMES = {"undifferentiated": "Undifferentiated Attention", "scaling": "Scaling Contribution"}
_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")
_COLOURS = ("#fff3c4", "#fdc66b", "#f4873f", "#dd4a4a", "#b3305f")


def safety_map(
    scores: HeadScores | Sequence[HeadScores], *, k: int | None = None, title: str | None = None
) -> go.Figure:
    """The ``k`` heads with the largest Ships, at their layer and head, coloured by Generalized Ships.

    Undifferentiated Attention is drawn as circles, Scaling Contribution as crosses; a head among the
    first of both has both marks. Hover for the head, its rank, scores and intervals.

    Args:
        scores: what ``mh.safety_heads`` gave, for one ablation or a list of two.
        k: how many heads of each; left out, as many as ``mh.safety_heads`` was asked for.
        title: left out, made from ``k`` and the model.

    Raises:
        ValueError: if scores are of another kind, repeat an ablation, or are of different models.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"], progress=False)
    >>> len(mh.plots.safety_map(safety).data[0].x)
    2
    """
    import plotly.graph_objects as go

    series = _checked([scores] if not isinstance(scores, Sequence) else list(scores))
    first = next(iter(series.values()))
    tops = {ablation: _top(one, one.provenance["k"] if k is None else k) for ablation, one in series.items()}
    traces = []
    for ablation, one in series.items():
        top = tops[ablation]
        symbol, size = _SYMBOLS[ablation]
        traces.append(
            go.Scatter(
                x=top["layer"].to_numpy(),
                y=top["head"].to_numpy(),
                mode="markers",
                name=_NAMES[ablation],
                marker={
                    "symbol": symbol,
                    "size": size,
                    "color": top["generalized_ships"].to_numpy(),
                    "coloraxis": "coloraxis",
                    "line": {"width": 1.2, "color": "#222222"},
                },
                text=_hover(top, ablation, one.unit, one.level),
                hovertemplate="%{text}<extra></extra>",
            )
        )
    figure = go.Figure(traces)
    figure.update_xaxes(title_text="Layer", **_axis(first.n_layers, 24))
    figure.update_yaxes(title_text="Head", **_axis(first.n_heads, 16))
    shown = max(map(len, tops.values()))
    heading = f"Top {shown} safety heads of {first.provenance.get('model', 'the model')}"
    figure.update_layout(
        title={"text": plain(heading if title is None else title), "x": 0.01, "xanchor": "left", "y": 0.96},
        coloraxis=_colours(np.concatenate([top["generalized_ships"].to_numpy() for top in tops.values()])),
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1.02,
            "yanchor": "bottom",
            "itemsizing": "trace",
        },
        showlegend=True,
        plot_bgcolor="white",
        width=900,
        height=int(np.clip(34 * first.n_heads, 300, 900)) + 150,
        margin={"l": 60, "r": 130, "t": 90, "b": 60},
    )
    return figure


def _checked(scores: list[HeadScores]) -> dict[str, HeadScores]:
    """The scores by ablation."""
    if not scores:
        raise ValueError("scores is empty; give what mh.safety_heads returned")
    series: dict[str, HeadScores] = {}
    for one in scores:
        ablation = one.provenance.get("ablation")
        if one.kind != "safety" or "generalized_ships" not in one.dataset or ablation not in _SYMBOLS:
            raise ValueError(f"{one.name!r} has no Generalized Ships to colour by; give what mh.safety_heads returned")
        if ablation in series:
            raise ValueError(f"two of the scores are for ablation {ablation!r}; give one for each ablation")
        series[ablation] = one
    models = {(one.n_layers, one.n_heads, one.provenance.get("model")) for one in scores}
    if len(models) > 1:
        raise ValueError(f"the scores are of {len(models)} models; draw each on its own")
    return series


def _top(scores: HeadScores, k: int) -> pd.DataFrame:
    """The first ``k`` heads with Generalized Ships and its interval."""
    top = scores.top(k)
    at = (top["layer"].to_numpy(), top["head"].to_numpy())
    return top.assign(**{name: scores.dataset[name].values[at] for name in _ANGLES})


def _axis(n: int, most: int) -> dict[str, Any]:
    return count_ticks(n, 18 * most) | {
        "range": [-0.7, n - 0.3],
        "showgrid": True,
        "gridcolor": "#e8e8e8",
        "showline": True,
        "mirror": True,
        "linecolor": "#888888",
    }


def _colours(degrees: np.ndarray) -> dict[str, Any]:
    top = float(np.nanmax(degrees)) if np.isfinite(degrees).any() else 1.0
    return {
        "colorscale": [[i / (len(_COLOURS) - 1), colour] for i, colour in enumerate(_COLOURS)],
        "cmin": 0.0,
        "cmax": top or 1.0,
        "colorbar": {"title": {"text": "Generalized<br>Ships, degrees"}, "thickness": 14},
    }


def _hover(top: pd.DataFrame, ablation: str, unit: str, level: float | None) -> list[str]:
    def with_interval(value: float, low: float, high: float, unit: str) -> str:
        text = f"{value:.4g} {plain(unit)}"
        if not (isfinite(low) and isfinite(high)):
            return text
        share = "interval" if level is None else f"{100 * level:g}%"
        return f"{text} ({share} {low:.4g} to {high:.4g})"

    lines = []
    for rank, row in enumerate(top.to_dict("records"), 1):
        ships = with_interval(row["score"], row["ci_low"], row["ci_high"], unit)
        value, low, high = (row[name] for name in _ANGLES)
        angle = with_interval(value, low, high, "degrees")
        lines.append(
            f"<b>L{row['layer']}H{row['head']}</b>, rank {rank}<br>{_NAMES[ablation]}<br>"
            f"Ships {ships}<br>Generalized Ships {angle}"
        )
    return lines
