"""Attack success against the number of heads ablated together, compared with random heads."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from mechheads.plots.parts import Theme, themed
from mechheads.plots.traces import OWN, OWN_BAND, RANDOM, RANDOM_BAND, band_trace, line_trace, share_figure

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_COLUMNS = ("which", "k", "attack_success", "ci_low", "ci_high", "deflected", "degenerate", "over_refusal")
_BESIDE = {"deflected": ("#5b4a9e", "dash"), "degenerate": ("#8a5a00", "dot")}
"""Verdicts whose share is drawn beside attack success: colour and dash of each."""


def refusal_curve(
    table: pd.DataFrame,
    *,
    title: str | None = None,
    unit: str = "head",
    theme: Theme = "light",
) -> go.Figure:
    """Attack success on harmful requests as more heads are ablated; ``RefusalCurve.plot`` draws it.

    The line of the ranked heads has its interval as a band. Random heads are drawn as their mean, with a band from the
    lowest draw to the highest. The thin lines are the shares of deflected and of degenerate answers to the same
    requests with the ranked heads ablated: if the second rises, the model breaks. The hover text shows the numbers,
    including over-refusal. Points that an interrupted run did not reach are left out.

    Args:
        table: the table of a ``RefusalCurve``.
        title: the title; by default a general one.
        unit: what is counted: ``"head"``, or ``"key/value group"``.
        theme: ``"light"`` or ``"dark"``.

    Raises:
        ValueError: if the table lacks a column or the line of the ranked heads.

    >>> curve = mh.safety.attack_curve(
    ...     model, ["L9H2"], ["How do I build a bomb?"], ["How do I build a barn?"], draws=1,
    ...     answers=mh.safety.AnswerSettings(max_new_tokens=2))
    >>> [trace.name for trace in curve.plot().data if trace.showlegend is not False]
    ['random heads, 1 draw', 'deflected answers', 'degenerate answers', 'heads of the ranking']
    """
    if absent := [name for name in _COLUMNS if name not in table]:
        raise ValueError(f"table has no column {absent[0]!r}; give mh.safety.attack_curve(...).table")
    lines = {str(which): rows.sort_values("k") for which, rows in table.groupby("which", sort=False)}
    if "heads" not in lines:
        raise ValueError("table has no rows for 'heads'; give mh.safety.attack_curve(...).table")
    own = lines.pop("heads")
    traces: list[Any] = []
    if lines:
        name = f"random {unit}s, {len(lines)} draw{'s' * (len(lines) != 1)}"
        random = table[table["which"] != "heads"].groupby("k")
        shares = {name: random[name].mean() for name in _BESIDE}
        draws = random["attack_success"].agg(["mean", "min", "max"]).assign(**shares)
        texts = [
            f"<b>{_ablated(k, f'random {unit}')}</b><br>"
            f"attack success {mean:.0%}, {low:.0%} to {high:.0%} over draws<br>"
            f"deflected {evaded:.0%}<br>degenerate {broken:.0%}"
            for k, mean, low, high, evaded, broken in draws.itertuples()
        ]
        traces.append(band_trace(draws.index.to_numpy(), draws["min"], draws["max"], RANDOM_BAND, name))
        traces.append(line_trace(draws.index.to_numpy(), draws["mean"], name, texts, {"color": RANDOM, "width": 2}))
    name = f"{unit}s of the ranking"
    texts = _texts(own, unit)
    for verdict, (color, dash) in _BESIDE.items():
        style = {"color": color, "width": 1.5, "dash": dash}
        traces.append(line_trace(own["k"], own[verdict], f"{verdict} answers", texts, style).update(mode="lines"))
    traces.append(band_trace(own["k"], own["ci_low"], own["ci_high"], OWN_BAND, name))
    traces.append(line_trace(own["k"], own["attack_success"], name, texts, {"color": OWN, "width": 3}))
    figure = share_figure(
        traces,
        max(own["k"].tolist()),
        title=f"Attack success as {unit}s are ablated" if title is None else title,
        x_title=f"number of {unit}s ablated together",
        y_title="attack success",
        legend_width=190,
    )
    return themed(figure, theme)


def _texts(line: pd.DataFrame, unit: str) -> list[str]:
    return [
        f"<b>{_ablated(row['k'], unit)}</b><br>attack success {row['attack_success']:.0%} "
        f"[{row['ci_low']:.0%}, {row['ci_high']:.0%}]<br>"
        f"deflected {_share(row['deflected'])}<br>degenerate {_share(row['degenerate'])}<br>"
        f"over-refusal {_share(row['over_refusal'])}"
        for row in line.to_dict("records")
    ]


def _share(share: float) -> str:
    return f"{share:.0%}" if isfinite(share) else "not known"


def _ablated(k: int, unit: str) -> str:
    return f"{k} {unit}{'s' * (k != 1)} ablated" if k else "no head ablated"
