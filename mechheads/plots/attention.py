"""Attention patterns with their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mechheads.heads import HeadId, HeadLike
from mechheads.plots.parts import Theme, colour_axis, figure_of, heat_trace, plain, themed, token_label

if TYPE_CHECKING:
    import plotly.graph_objects as go

Pattern = Float[np.ndarray, "query key"]
_BLUES = ("#f1f6fc", "#c6dbef", "#6baed6", "#2171b5", "#08306b")


def attention(
    pattern: Pattern | Mapping[HeadLike, Pattern],
    tokens: Sequence[str],
    *,
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Attention pattern as a heatmap, query tokens down and key tokens across, with a menu if there are several heads.

    Zeros above the diagonal, which a causal model cannot attend to, are left blank. All other values are drawn on one
    scale from 0 to 1. Equal tokens at different positions have their own rows and columns, and whitespace in tokens is
    made visible. One head is drawn at a time: the menu puts another head's numbers, rounded to three digits, into the
    same picture, so that 270 heads of 24 tokens weigh about a megabyte.

    Args:
        pattern: attention probabilities [query, key] of one head, or a mapping from heads to their patterns; the first
            is drawn first.
        tokens: one string per position.
        title: the title; with several heads, the head's name is appended.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is no head, a pattern's shape does not fit the tokens, or a pattern holds negative or
            non-finite numbers.

    >>> import numpy as np
    >>> figure = attention(np.array([[1.0, 0.0], [0.4, 0.6]]), ["The", " end"])
    >>> list(figure.layout.yaxis.ticktext)
    ['The', '·end']
    """
    if isinstance(pattern, Mapping):
        patterns = {str(HeadId.parse(head)): _checked(array, tokens) for head, array in pattern.items()}
        if not patterns:
            raise ValueError("pattern is empty; give at least one head")
    else:
        patterns = {"": _checked(pattern, tokens)}
    titles = [" ".join(part for part in (plain(title or ""), name) if part) for name in patterns]
    n = len(tokens)
    labels = [token_label(token) for token in tokens]
    cell = int(np.clip(900 // n, 5, 34))
    size = max(cell * n, 200)
    step = -(-10 // cell)
    first, array = next(iter(patterns.items()))
    trace = heat_trace(_blanked(array), np.arange(n), np.arange(n), _pairs(labels), 1 if cell >= 10 else 0, name=first)
    figure = figure_of([trace.update(hovertemplate=_hover(first))])
    text_room = 30 + 8 * max(min(len(token), 24) for token in tokens)
    ticks = {
        "tickmode": "array",
        "tickvals": np.arange(0, n, step),
        "ticktext": labels[::step],
        "tickfont": {"size": min(max(cell - 1, 9), 12)},
    }
    figure.update_xaxes(title_text="attends to", tickangle=-60, **ticks)
    figure.update_yaxes(title_text="token", range=[n - 0.5, -0.5], **ticks)
    figure.update_layout(
        title={"text": titles[0], "x": 0.01, "xanchor": "left"},
        coloraxis=colour_axis(_BLUES, 0.0, 1.0, "attention"),
        width=size + text_room + 150,
        height=size + text_room + 110,
        margin={"l": text_room + 30, "r": 110, "t": 70, "b": text_room + 30},
        updatemenus=[_menu(patterns, titles)] if len(patterns) > 1 else [],
    )
    return themed(figure, theme)


def _checked(pattern: Any, tokens: Sequence[str]) -> np.ndarray:
    array = np.asarray(pattern, dtype=np.float64)
    if not len(tokens) or array.shape != (len(tokens), len(tokens)):
        raise ValueError(
            f"pattern has shape {array.shape}, but there are {len(tokens)} tokens; "
            "it must be [query, key] with one row and one column per token"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError("pattern holds negative or non-finite numbers; give probabilities, after softmax")
    return array


def _blanked(array: np.ndarray) -> np.ndarray:
    ahead = np.triu(np.ones(array.shape, dtype=bool), k=1)
    return np.where(ahead & (array == 0), np.nan, array)


def _pairs(labels: list[str]) -> list[list[str]]:
    """The two tokens of each cell, which all heads share."""
    return [[f"{query} ({i}) to {key} ({j})" for j, key in enumerate(labels)] for i, query in enumerate(labels)]


def _hover(name: str) -> str:
    return (f"<b>{name}</b><br>" if name else "") + "%{text}<br>%{z:.3g}<extra></extra>"


def _menu(patterns: Mapping[str, np.ndarray], titles: list[str]) -> dict[str, Any]:
    buttons = [
        {
            "label": name,
            "method": "update",
            "args": [{"z": [_rounded(array)], "name": name, "hovertemplate": _hover(name)}, {"title.text": title}],
        }
        for (name, array), title in zip(patterns.items(), titles, strict=True)
    ]
    return {"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "pad": {"b": 6}}


def _rounded(array: np.ndarray) -> list[list[float | None]]:
    """The numbers rounded to three digits, as plotly's menu takes them; blank cells are ``None``."""
    return [[None if np.isnan(value) else float(f"{value:.3g}") for value in row] for row in _blanked(array)]
