"""Category map: the categories of every head in a model, layers across and heads up, one panel per model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from colorsys import hsv_to_rgb
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mechheads.messages.arguments import checked
from mechheads.plots.parts import (
    FRAME,
    Panels,
    Theme,
    count_ticks,
    figure_title,
    heat_trace,
    interval,
    p_texts,
    plain,
    themed,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.results.scores import HeadScores


_FRAME: dict[str, Any] = FRAME | {"ticks": "outside"}
_PANEL_WIDTH, _PANEL_HEIGHT, _GAP_ACROSS, _GAP_DOWN, _WIDEST = 520, 340, 62, 84, 1100
_LINE = 20
"""The height of a row of the legend in pixels."""
Marks = Literal["cells", "dots"]


@checked
def category_map(
    labels: HeadScores | Mapping[str, HeadScores],
    *,
    marks: Marks = "cells",
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Map of the heads of one or several models, coloured by category, as in the paper.

    A head of one category has that category's colour; a head of several has the colour of their number. Evidence below
    the floor of ``label_heads`` does not count. The legend above has all classes of the paper, also those that no head
    has, and for a single model how many heads are in each, which adds up to all heads with scores. Categories that no
    model was tested for are marked. Heads without scores are gaps. The hover text shows the head, its categories, and
    the best relation of each with its score and reading; it also shows evidence below the floor. Click a name in the
    legend to hide or show it in every panel.

    Args:
        labels: from ``label_heads``, or several results in a mapping from the names of their models.
        marks: ``"cells"``, or ``"dots"`` as in the paper's figure.
        title: the title; by default the model's name if there is one panel.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if there is nothing to draw, a result holds no labels, or ``marks`` is unknown.

    >>> labels = mh.label_heads(mh.relation_scores(model, "country_to_capital"))
    >>> figure = mh.plots.category_map({"SmolLM2": labels})
    >>> figure.layout.annotations[0].text
    'SmolLM2'
    """
    panels = dict(labels) if isinstance(labels, Mapping) else {"": labels}
    if not panels:
        raise ValueError("labels is empty; give a result of label_heads, or several in {model name: result}")
    for name, part in panels.items():
        _check(name, part)
    if title is None and not isinstance(labels, Mapping):
        title = str(labels.provenance.get("model", labels.name))
    tested = {name for part in panels.values() for name in part.dataset["category"].values.tolist()}
    palette = category_colours(tested)
    classes = {name: _classes(part) for name, part in panels.items()}
    grid = _place_panels(list(panels.values()))
    figure = grid.figure(subplot_titles=[plain(name) for name in panels] if isinstance(labels, Mapping) else None)
    entries = _entries(palette, tested, list(classes.values()))
    _add_legend(figure, palette, entries)
    figure.update_xaxes(title_standoff=4, **_FRAME)
    figure.update_yaxes(title_standoff=6, **_FRAME)
    figure.update_annotations(font_size=15)
    for i, (name, part) in enumerate(panels.items()):
        _add_panel(figure, part, classes[name], palette, grid.place(i), (grid.panel_width, grid.panel_height), marks)
    longest = 5.6 * max(map(len, entries.values())) + 40
    in_row = max(1, min(ceil(len(entries) / 2), int(grid.width // longest)))
    headings = 30 * isinstance(labels, Mapping)
    top = (48 if title else 16) + _LINE * ceil(len(entries) / in_row) + 12 + headings
    figure.update_layout(
        title=figure_title(title or "") | {"y": 1, "yanchor": "top", "pad": {"t": 18}},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1 + (headings + 6) / grid.height,
            "yanchor": "bottom",
            "font": {"size": 12},
            "entrywidth": 1 / in_row - 8 / grid.width,
            "entrywidthmode": "fraction",
            "tracegroupgap": 0,
        },
        width=grid.width + 90,
        height=grid.height + top + 60,
        margin={"l": 60, "r": 30, "t": top, "b": 60},
    )
    return themed(figure, theme)


def _place_panels(panels: Sequence[HeadScores]) -> Panels:
    """Up to three panels side by side, narrower than one alone, but not too narrow for the layers."""
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    fitting = (_WIDEST - (columns - 1) * _GAP_ACROSS) // columns
    width = min(_PANEL_WIDTH, max(fitting, 6 * max(part.n_layers for part in panels)))
    height = min(_PANEL_HEIGHT, max(180, 20 * max(part.n_heads for part in panels)))
    return Panels(ceil(len(panels) / columns), columns, width, height, _GAP_ACROSS, _GAP_DOWN)


def _entries(palette: Mapping[str, str], tested: set[str], classes: Sequence[np.ndarray]) -> dict[str, str]:
    """The legend's text for each class that was tested or occurs, and for all the paper's if one of them was tested."""
    occurring = [group for part in classes for group in part.ravel().tolist()]
    used = {*tested, *occurring, *(_COLOURS if tested & set(_CATEGORIES) else ())}
    number = "" if len(classes) > 1 else " {}"
    return {
        group: f"{plain(group)} (not tested)"
        if group in _CATEGORIES and group not in tested
        else plain(group) + number.format(occurring.count(group))
        for group in palette
        if group in used
    }


def _add_legend(figure: go.Figure, palette: Mapping[str, str], entries: Mapping[str, str]) -> None:
    """One entry per class, which hides or shows the class in every panel."""
    import plotly.graph_objects as go

    for group, name in entries.items():
        marker = {"symbol": "square", "size": 13, "color": palette[group]}
        key = {"name": name, "legendgroup": group}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, **key), row=1, col=1)


def _add_panel(
    figure: go.Figure,
    labels: HeadScores,
    classes: np.ndarray,
    palette: Mapping[str, str],
    place: dict[str, Any],
    size: tuple[int, int],
    marks: Marks,
) -> None:
    """The heads of one model in a panel, one trace per class."""
    import plotly.graph_objects as go

    n_layers, n_heads, (width, height) = labels.n_layers, labels.n_heads, size
    side = min(width / n_layers, height / n_heads)
    hover = np.array(_hover(labels)).T
    for group in dict.fromkeys(classes.ravel().tolist()):
        if not group:
            continue
        here = group == classes.T
        key = {"name": plain(group), "legendgroup": group, "showlegend": False}
        if marks == "dots":
            heads, layers = np.nonzero(here)
            trace: Any = go.Scatter(
                x=layers,
                y=heads,
                mode="markers",
                marker={"size": min(14, max(2, 0.75 * side)), "color": palette[group]},
                text=hover[here],
                hovertemplate="%{text}<extra></extra>",
                **key,
            )
        else:
            trace = heat_trace(
                np.where(here, 1.0, np.nan),
                np.arange(n_layers),
                np.arange(n_heads),
                np.where(here, hover, ""),
                1 if side >= 6 else 0.4,
                showscale=False,
                coloraxis=None,
                colorscale=[[0, palette[group]], [1, palette[group]]],
                zmin=0,
                zmax=1,
                **key,
            )
        figure.add_trace(trace, **place)
    layers, heads = count_ticks(n_layers, width), count_ticks(n_heads, height)
    figure.update_xaxes(title_text="Layer", range=[-0.5, n_layers - 0.5], **layers, **place)
    title = "Head" if place["col"] == 1 else None
    figure.update_yaxes(title_text=title, range=[-0.5, n_heads - 0.5], **heads, **place)


def _check(name: str, labels: HeadScores) -> None:
    if labels.extra_dims != ("category",) or "member" not in labels.dataset:
        where = f" of {name!r}" if name else ""
        raise ValueError(f"the scores{where} ({labels.name!r}) hold no categories; give what label_heads returns")


def _classes(labels: HeadScores) -> np.ndarray:
    """The class of every head, [layer, head]; an empty string if it has no scores."""
    member, names = labels.dataset["member"].values.astype(bool), labels.dataset["category"].values
    classes = [class_of(names[has].tolist()) for has in member.reshape(-1, len(names))]
    missing = np.isnan(labels.scores.values).all(-1)
    return np.where(missing, "", np.array(classes, dtype=object).reshape(missing.shape))


def class_of(categories: Sequence[str]) -> str:
    """The class of a head with these categories."""
    return categories[0] if len(categories) == 1 else f"{len(categories)} categories" if categories else NONE


def _hover(labels: HeadScores) -> list[list[str]]:
    names = [plain(name) for name in labels.dataset["category"].values.tolist()]
    data = {
        key: labels.dataset[key].values
        for key in ("score", "ci_low", "ci_high", "p_family", "q_value", "best_relation")
    }
    readings = labels.dataset["reading"].values if "reading" in labels.dataset else None
    member = labels.dataset["member"].values.astype(bool)
    below = labels.dataset["below_floor"].values.astype(bool)

    def line(layer: int, head: int, i: int) -> str:
        score, low, high, p_family, q, relation = (array[layer, head, i] for array in data.values())
        tests = "".join(f", {each}" for each in p_texts(p_family, q))
        read = f", reading {readings[layer, head, i]}" if readings is not None and readings[layer, head, i] else ""
        return f"{names[i]}: {plain(str(relation))}, φ = {score:.2f}{interval(low, high)}{tests}{read}"

    def one(layer: int, head: int) -> str:
        scores = data["score"][layer, head]
        shown, faint = (np.flatnonzero(mask[layer, head]).tolist() for mask in (member, below))
        lines = [line(layer, head, i) for i in shown]
        lines += [f"below the floor: {line(layer, head, i)}" for i in faint]
        if not lines and np.isfinite(scores).any():
            lines = [f"best {line(layer, head, int(np.nanargmax(scores)))}"]
        return "<br>".join([f"<b>L{layer}H{head}</b>" + (" Unclassified" if lines and not shown else ""), *lines])

    return [[one(layer, head) for head in range(labels.n_heads)] for layer in range(labels.n_layers)]


NONE = "Unclassified"
"""The class of heads without a category."""
_COLOURS = {
    NONE: "#d9d9d9",
    "Knowledge": "#ff7f0e",
    "Translation": "#d62728",
    "Algorithmic": "#1f77b4",
    "Linguistic": "#2ca02c",
    "2 categories": "#9467bd",
    "3 categories": "#8c564b",
    "4 categories": "#e377c2",
}
_CATEGORIES = ("Knowledge", "Translation", "Algorithmic", "Linguistic")
_FURTHER = ("#17becf", "#bcbd22", "#000000", "#aec7e8", "#98df8a", "#ffbb78", "#c5b0d5", "#f7b6d2")


def category_colours(categories: Iterable[str]) -> dict[str, str]:
    """Colours of all classes that can occur, such as ``"2 categories"``, in the legend's order."""
    different = set(categories)
    several = [f"{n} categories" for n in range(2, max(len(different), 4) + 1)]
    names, further = [NONE, *_CATEGORIES, *sorted(different - _COLOURS.keys()), *several], _further()
    return {name: _COLOURS[name] if name in _COLOURS else next(further) for name in names}


def _further() -> Iterator[str]:
    """Further colours, without end; the hues of generated colours are spread by the golden ratio."""
    yield from _FURTHER
    for i in count(1):
        yield "#" + "".join(f"{round(255 * part):02x}" for part in hsv_to_rgb(i * 0.618034 % 1, 0.55, 0.8))
