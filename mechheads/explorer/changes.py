"""What changed from the first model of a page to another of the same sizes, head by head and view by view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mechheads.explorer.encode import plain
from mechheads.heads import check_heads
from mechheads.results.evidence import differs, n_prompts
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas
from mechheads.studies.findings import LEVEL

SHOWN = 20
"""How many heads are listed."""
WITHIN = 8
"""How many larger changes are named that lie within their intervals."""
_OTHER_RELATIONS = "Phi is not compared: it is that of the best relation, and the two had other relations."


@dataclass(frozen=True)
class Change:
    """How one view of all heads changed, arrays over heads.

    Attributes:
        paired: the number of prompts if both models saw the same, so that the intervals are of differences; None if
            two intervals were compared, or there are none.
        measured: whether the view has intervals at all.
        before, after: the scores.
        low, high, q: of the differences; NaN unless they are paired.
        beyond: whether the interval of the difference excludes 0, or the two intervals do not overlap.
        surely: whether the difference passes the test over all heads.
    """

    paired: int | None
    measured: bool
    before: Float[np.ndarray, " head"]
    after: Float[np.ndarray, " head"]
    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]
    q: Float[np.ndarray, " head"]
    beyond: Bool[np.ndarray, " head"]
    surely: Bool[np.ndarray, " head"]

    @property
    def difference(self) -> Float[np.ndarray, " head"]:
        return self.after - self.before

    @property
    def size(self) -> Float[np.ndarray, " head"]:
        """The size of each difference, in standard deviations of the scores over the heads of the first model."""
        known = self.before[np.isfinite(self.before)]
        spread = float(known.std()) if known.size else 0.0
        return np.abs(self.difference) / (spread or 1.0)


def change_of(before: HeadScores, after: HeadScores) -> Change:
    """How the scores of two models of the same sizes differ, prompt by prompt if both saw the same prompts."""
    old, new = (each.dataset["score"].values.ravel().astype(np.float64) for each in (before, after))
    try:
        told = after - before
    except ValueError:  # other prompts
        told = None
    if told is not None and told.values is not None:
        low, high, q = (told.dataset[name].values.ravel() for name in ("ci_low", "ci_high", "q_value"))
        paired, beyond, surely = n_prompts(told), (low > 0) | (high < 0), differs(told).ravel()
    else:
        paired, surely = None, np.zeros(old.shape, dtype=bool)
        low, high, q = (np.full_like(old, np.nan) for _ in range(3))
        lows, highs = (
            [each.dataset[name].values.ravel() for each in (before, after)] for name in ("ci_low", "ci_high")
        )
        beyond = (lows[1] > highs[0]) | (highs[1] < lows[0])
    known = np.isfinite(low) if paired else np.isfinite(before.dataset["ci_low"].values).ravel()
    return Change(paired, bool(known.any()), old, new, low, high, q, beyond, surely)


def compared(atlases: Sequence[Atlas], models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page says of each model that can be compared with the first; ``Change`` in ``front/src/data.ts``."""
    base, *others = atlases
    return [
        _page_entry(number, base, atlas, models)
        for number, atlas in enumerate(others, 1)
        if atlas.sizes == base.sizes and _common(base, atlas)
    ]


def change_columns(entry: dict[str, Any], base: str) -> list[dict[str, Any]]:
    """Columns of the changed model: the differences from the first model, which they take out of the entry."""
    nothing = {"of": None, "low": None, "high": None, "range": False, "q": None, "p": None}
    return [
        nothing
        | {
            "name": f"{view['name']}_change",
            "label": f"{view['title']}, change",
            "unit": view["unit"],
            "meaning": f"{view['title']} minus that of {base}.",
            "kind": "number",
            "group": f"Changed from {base}",
            "role": "value",
            "signed": True,
            "question": view.pop("question"),
            "values": view.pop("differences"),
        }
        for view in entry["views"]
    ]


def start_with(changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a page with such changes shows first: the second model against the first, and the maps of both."""
    if not changes:
        return {}
    first = changes[0]
    most = max(first["views"], key=lambda view: (view["surely"], view["beyond"]))
    chosen = {"versus": 0, "together": True, "colour": f"{most['name']}_change", "by": f"{most['name']}_change"}
    return {"start": {"model": first["model"], "head": None, "chosen": chosen}}


def _common(base: Atlas, atlas: Atlas) -> dict[str, tuple[HeadScores, HeadScores]]:
    """The views that both have in the same unit, and of the same relations."""
    unlike = {"phi"} if _has_other_relations(base, atlas) else set()
    shared = (base.views.keys() & atlas.views.keys()) - unlike
    both = {name: (scores, atlas.views[name]) for name, scores in base.views.items() if name in shared}
    return {name: (before, after) for name, (before, after) in both.items() if before.unit == after.unit}


def _has_other_relations(base: Atlas, atlas: Atlas) -> bool:
    """Whether the best of other relations was sought in each of the two."""
    if base.labels is None or atlas.labels is None:
        return False
    first, second = (set(labels.dataset["relation"].values.tolist()) for labels in (base.labels, atlas.labels))
    return first != second


def _page_entry(number: int, base: Atlas, atlas: Atlas, models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told = {view["name"]: view for view in models[number]["views"]}
    changes = {name: change_of(*scores) for name, scores in _common(base, atlas).items()}
    views = [_view(told[name], change) for name, change in changes.items()]
    rows = [
        (not surely, not beyond, -size, name, head)
        for name, change in changes.items()
        for head, (size, beyond, surely) in enumerate(zip(change.size, change.beyond, change.surely, strict=True))
        if np.isfinite(size) and size > 0
    ]
    heads = [str(head) for head in check_heads(None, *base.sizes)]
    first, largest = sorted(rows)[:SHOWN], sorted(rows, key=lambda row: row[2])[:SHOWN]
    within = [row for row in largest if row[1] and row not in first][:WITHIN]
    listed = {"rows": first, "within": within}
    unlike = _OTHER_RELATIONS if _has_other_relations(base, atlas) else ""
    return {"model": number, "of": 0, "views": views, "unlike": unlike} | {
        part: [_row(changes[name], name, head, heads[head]) for *_, name, head in each] for part, each in listed.items()
    }


def _view(told: dict[str, Any], change: Change) -> dict[str, Any]:
    known = int(np.isfinite(change.difference).sum())
    return {
        "name": told["name"],
        "title": told["title"],
        "unit": told["unit"],
        "how": _how(change, known),
        "beyond": int(change.beyond.sum()),
        "surely": int(change.surely.sum()),
        "known": known,
        "question": told["question"],
        "differences": plain(change.difference),
    }


def _how(change: Change, known: int) -> str:
    """How it was found out which heads changed, in a sentence."""
    by_chance = round(known * (1 - LEVEL))
    if change.paired is not None and change.measured:
        return (
            f"Differences on the same {change.paired} prompts; a head is beyond its interval if this excludes 0, which "
            f"about {by_chance} of {known} heads are by chance alone."
        )
    if change.measured:
        return "The two share no prompts, so a head is beyond its interval if those of the two do not overlap."
    return "There are no intervals, so nothing says which differences are more than chance."


def _row(change: Change, view: str, head: int, name: str) -> dict[str, Any]:
    values = {
        "before": change.before[head],
        "after": change.after[head],
        "difference": change.difference[head],
        "low": change.low[head],
        "high": change.high[head],
        "q": change.q[head],
        "size": change.size[head],
        "beyond": bool(change.beyond[head]),
    }
    return {"view": view, "head": name, **plain(values)}
