"""Accuracy as heads are removed one after the other, compared with random heads and other relations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mechheads.plots.parts import Theme, plain, themed
from mechheads.plots.traces import OWN, OWN_BAND, RANDOM, RANDOM_BAND, band_trace, line_trace, share_figure

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from mechheads.heads import HeadId

_CONTROLS = ("#1f77b4", "#e08214", "#1b7837", "#762a83", "#17becf")


def removal_curves(
    table: pd.DataFrame,
    relation: str,
    heads: Sequence[HeadId | str],
    *,
    random: Sequence[str] = (),
    controls: Sequence[str] = (),
    title: str | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Accuracy on a relation as its heads are removed, best first; ``Removal.plot`` draws it.

    The curve of the relation has its interval as a band. Random heads are drawn as their mean, with a band from the
    worst draw to the best. Control relations, tested with the same heads removed, are dashed lines. The hover text
    shows the head removed last and the accuracy with its interval. Points that an interrupted run did not reach are
    left out.

    Args:
        table: rows with ``k`` (number of heads removed), ``which``, ``accuracy``, ``ci_low`` and ``ci_high``; ``which``
            is "relation" for the curve of the relation.
        relation: the name of the relation.
        heads: the heads in the order in which they are removed.
        random, controls: the values of ``which`` for draws of random heads and for control relations.
        title: the title; by default made from the relation.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if the table has no rows for one of these values.

    >>> removal = mh.labels.cumulative_removal(
    ...     model, "country_to_capital", ["L23H4"], draws=2, n=4, shots=1)
    >>> [trace.name for trace in removal.plot().data if trace.showlegend is not False]
    ['random heads, 2 draws', 'country_to_capital']
    """
    lines = {which: rows.sort_values("k") for which, rows in table.groupby("which", sort=False)}
    if absent := [which for which in ("relation", *random, *controls) if which not in lines]:
        raise ValueError(f"table has no rows for {absent[0]!r}; it has rows for {', '.join(map(repr, lines))}")
    own = lines["relation"]
    shown = f"<b>{plain(relation)}</b><br>"
    traces: list[Any] = []
    if random:
        draws = table[table["which"].isin(list(random))].groupby("k")["accuracy"].agg(["mean", "min", "max"])
        name = f"random heads, {len(random)} draw{'s' * (len(random) != 1)}"
        traces.append(band_trace(draws.index.to_numpy(), draws["min"], draws["max"], RANDOM_BAND, name))
        text = [
            f"{shown}without {k} random head{'s' * (k != 1)}<br>accuracy {mean:.2f}, {low:.2f} to {high:.2f}"
            for k, mean, low, high in draws.itertuples()
        ]
        traces.append(line_trace(draws.index.to_numpy(), draws["mean"], name, text, {"color": RANDOM, "width": 2}))
    for i, which in enumerate(controls):
        colour = {"color": _CONTROLS[i % len(_CONTROLS)], "width": 1.5, "dash": "dash"}
        texts = _texts(lines[which], f"<b>{plain(which)}</b><br>", heads)
        name = f"control: {plain(which)}"
        traces.append(line_trace(lines[which]["k"], lines[which]["accuracy"], name, texts, colour))
    traces.append(band_trace(own["k"], own["ci_low"], own["ci_high"], OWN_BAND, plain(relation)))
    traces.append(
        line_trace(own["k"], own["accuracy"], plain(relation), _texts(own, shown, heads), {"color": OWN, "width": 3})
    )
    figure = share_figure(
        traces,
        max(own["k"].tolist()),
        title=f"{relation} without its heads" if title is None else title,
        x_title="heads removed, best first",
        y_title="accuracy",
        legend_width=240,
    )
    return themed(figure, theme)


def _texts(line: pd.DataFrame, shown: str, heads: Sequence[HeadId | str]) -> list[str]:
    columns = (line[name].tolist() for name in ("k", "accuracy", "ci_low", "ci_high"))
    return [
        f"{shown}{_without(k, heads)}<br>accuracy {share:.2f} [{low:.2f}, {high:.2f}]"
        for k, share, low, high in zip(*columns, strict=True)
    ]


def _without(k: int, heads: Sequence[HeadId | str]) -> str:
    if not k:
        return "with all heads"
    return f"without {heads[0]}" if k == 1 else f"without {k} heads, the last {heads[k - 1]}"
