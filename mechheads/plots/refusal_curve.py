"""Attack success against the number of heads ablated together, compared with random heads."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from mechheads.plots.parts.traces import OWN, OWN_BAND, RANDOM, RANDOM_BAND, band_trace, line_trace, share_figure

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_COLUMNS = ("which", "k", "attack_success", "ci_low", "ci_high", "degenerate", "over_refusal")
_DEGENERATE = "#8a5a00"


def refusal_curve(table: pd.DataFrame, *, title: str | None = None) -> go.Figure:
    """Attack success on harmful requests as more heads are ablated; ``RefusalCurve.plot`` draws it.

    The line of the ranked heads has its interval as a band. Random heads are drawn as their mean, with a band from the
    lowest draw to the highest. The dotted line is the share of degenerate answers to the same requests with the ranked
    heads ablated: if it rises, the model breaks. The hover text shows the numbers, including over-refusal. Points that
    an interrupted run did not reach are left out.

    Args:
        table: the table of a ``RefusalCurve``.
        title: the title; by default a general one.

    Raises:
        ValueError: if the table lacks a column or the line of the ranked heads.

    >>> curve = mh.safety.attack_curve(
    ...     model, ["L9H2"], ["How do I build a bomb?"], ["How do I build a barn?"], draws=1, max_new_tokens=2,
    ...     progress=False)
    >>> [trace.name for trace in curve.plot().data if trace.showlegend is not False]
    ['random heads, 1 draw', 'degenerate answers', 'heads of the ranking']
    """
    if absent := [name for name in _COLUMNS if name not in table]:
        raise ValueError(f"table has no column {absent[0]!r}; give mh.safety.attack_curve(...).table")
    lines = {str(which): rows.sort_values("k") for which, rows in table.groupby("which", sort=False)}
    if "heads" not in lines:
        raise ValueError("table has no rows for 'heads'; give mh.safety.attack_curve(...).table")
    own = lines.pop("heads")
    traces: list[Any] = []
    if lines:
        name = f"random heads, {len(lines)} draw{'s' * (len(lines) != 1)}"
        random = table[table["which"] != "heads"].groupby("k")
        draws = random["attack_success"].agg(["mean", "min", "max"]).assign(broken=random["degenerate"].mean())
        texts = [
            f"<b>{_ablated(k, 'random ')}</b><br>attack success {mean:.0%}, {low:.0%} to {high:.0%} over draws<br>"
            f"degenerate {broken:.0%}"
            for k, mean, low, high, broken in draws.itertuples()
        ]
        traces.append(band_trace(draws.index.to_numpy(), draws["min"], draws["max"], RANDOM_BAND, name))
        traces.append(line_trace(draws.index.to_numpy(), draws["mean"], name, texts, {"color": RANDOM, "width": 2}))
    name = "heads of the ranking"
    texts = _texts(own)
    dots = {"color": _DEGENERATE, "width": 1.5, "dash": "dot"}
    traces.append(line_trace(own["k"], own["degenerate"], "degenerate answers", texts, dots).update(mode="lines"))
    traces.append(band_trace(own["k"], own["ci_low"], own["ci_high"], OWN_BAND, name))
    traces.append(line_trace(own["k"], own["attack_success"], name, texts, {"color": OWN, "width": 3}))
    return share_figure(
        traces,
        max(own["k"].tolist()),
        title="Attack success as heads are ablated" if title is None else title,
        x_title="number of heads ablated together",
        y_title="attack success",
        legend_width=190,
    )


def _texts(line: pd.DataFrame) -> list[str]:
    return [
        f"<b>{_ablated(row['k'])}</b><br>attack success {row['attack_success']:.0%} "
        f"[{row['ci_low']:.0%}, {row['ci_high']:.0%}]<br>"
        f"degenerate {_share(row['degenerate'])}<br>over-refusal {_share(row['over_refusal'])}"
        for row in line.to_dict("records")
    ]


def _share(share: float) -> str:
    return f"{share:.0%}" if isfinite(share) else "not known"


def _ablated(k: int, kind: str = "") -> str:
    return f"{k} {kind}head{'s' * (k != 1)} ablated" if k else "no head ablated"
