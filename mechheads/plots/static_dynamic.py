"""Static against dynamic relation scores: one point per head and template."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.heads import check_heads
from mechheads.plots.parts.axes import FRAME
from mechheads.plots.parts.figure import Panels
from mechheads.plots.parts.text import figure_title, interval, plain
from mechheads.plots.parts.theme import Theme, themed
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
