"""Path matrix: the effect of each sender on each receiver, senders down and receivers across."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mechheads.heads import HeadId
from mechheads.plots.heatmap import hover
from mechheads.plots.parts.colours import MISSING, SIGNED, colour_scale
from mechheads.plots.parts.figure import figure_of
from mechheads.plots.parts.text import figure_title, level_name, plain
from mechheads.plots.parts.theme import Theme, themed

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.results.scores import HeadScores

_WIDTH, _CELL_HEIGHT = 900, 26


def path_matrix(
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
    >>> list(mh.plots.path_matrix(scores).layout.yaxis.ticktext)
    ['L0H1', 'L0H0']
    """
    if top < 1:
        raise ValueError(f"top is {top}; it must be at least 1")
    if scores.extra_dims != ("receiver",):
        raise ValueError(f"the scores ({scores.name!r}) have no receivers; give the result of mh.path_matrix")
    senders, measured = _strongest(scores, top)
    receivers = scores.dataset["receiver"].values.tolist()
    cell = int(np.clip(_WIDTH // len(receivers), 5, 72))
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
        title=figure_title(scores.name if title is None else title),
        coloraxis={
            "colorscale": colour_scale(SIGNED),
            "cmin": -furthest,
            "cmax": furthest,
            "colorbar": {"title": {"text": plain(scores.unit)}, "thickness": 14},
        },
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "itemclick": False},
        plot_bgcolor=MISSING,
        width=max(cell * len(receivers), 280) + 220,
        height=max(_CELL_HEIGHT * len(senders), 160) + 200,
        margin={"l": 100, "r": 120, "t": 100, "b": 100},
    )
    return themed(figure, theme)


def _effects(scores: HeadScores, senders: np.ndarray, cell: int) -> go.Heatmap:
    """The effect of each sender on each receiver."""
    import plotly.graph_objects as go

    receivers = scores.dataset["receiver"].values.tolist()
    texts = [np.ravel(hover(scores.select(receiver=name), f"to {plain(name)}"))[senders] for name in receivers]
    line = 1 if cell >= 10 else 0
    return go.Heatmap(
        z=_values(scores, "score", senders),
        x=np.arange(len(receivers)),
        y=np.arange(len(senders)),
        text=np.array(texts).T,
        hovertemplate="%{text}<extra></extra>",
        hoverongaps=False,
        coloraxis="coloraxis",
        xgap=line,
        ygap=line,
    )


def _dots(scores: HeadScores, senders: np.ndarray, cell: int) -> go.Scatter:
    """A dot in each cell whose interval excludes 0."""
    import plotly.graph_objects as go

    rows, columns = np.nonzero((_values(scores, "ci_low", senders) > 0) | (_values(scores, "ci_high", senders) < 0))
    return go.Scatter(
        x=columns,
        y=rows,
        mode="markers",
        marker={"size": min(6, max(cell - 2, 2)), "color": "#444444", "line": {"width": 1, "color": "white"}},
        name=f"{level_name(scores.level)} excludes 0",
        hoverinfo="skip",
        showlegend=bool(len(rows)),
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
