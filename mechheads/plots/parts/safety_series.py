"""The heads of a safety map that are drawn with one marker, and what is said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from mechheads.results.scores import HeadScores

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
    about: str
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
    lines = [f"<b>L{row['layer']}H{row['head']}{last}</b>, rank {rank}", series.about]
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
