"""What changed from the first model of a page to another of the same sizes, head by head and view by view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from mechheads.explorer import contract
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
        difference = after - before
    except ValueError:  # other prompts
        difference = None
    if difference is not None and difference.values is not None:
        low, high, q = (difference.dataset[name].values.ravel() for name in ("ci_low", "ci_high", "q_value"))
        paired, beyond, surely = n_prompts(difference), (low > 0) | (high < 0), differs(difference).ravel()
    else:
        paired, surely = None, np.zeros(old.shape, dtype=bool)
        low, high, q = (np.full_like(old, np.nan) for _ in range(3))
        lows, highs = (
            [each.dataset[name].values.ravel() for each in (before, after)] for name in ("ci_low", "ci_high")
        )
        beyond = (lows[1] > highs[0]) | (highs[1] < lows[0])
    known = np.isfinite(low) if paired else np.isfinite(before.dataset["ci_low"].values).ravel()
    return Change(paired, bool(known.any()), old, new, low, high, q, beyond, surely)


def compared(atlases: Sequence[Atlas], models: Sequence[contract.Model]) -> list[contract.Change]:
    """What the page says of each model that can be compared with the first, whose columns get the differences."""
    base, *others = atlases
    made = []
    for number, atlas in enumerate(others, 1):
        if atlas.sizes == base.sizes and (both := _common(base, atlas)):
            changes = {name: change_of(*scores) for name, scores in both.items()}
            shown = {view["name"]: view for view in models[number]["views"] if view["name"] in changes}
            unlike = _OTHER_RELATIONS if _has_other_relations(base, atlas) else ""
            views = [_view(shown[name], change) for name, change in changes.items()]
            rows, within = _listed(changes, [str(head) for head in check_heads(None, *base.sizes)])
            made.append(contract.Change(model=number, of=0, views=views, unlike=unlike, rows=rows, within=within))
            models[number]["columns"] += [
                _column(shown[name], change, models[0]["name"]) for name, change in changes.items()
            ]
    return made


def _column(view: contract.View, change: Change, base: str) -> contract.Column:
    """The differences from the first model, a column of the changed one."""
    return {
        "name": f"{view['name']}_change",
        "label": f"{view['title']}, change",
        "unit": view["unit"],
        "meaning": f"{view['title']} minus that of {base}.",
        "kind": "number",
        "group": f"Changed from {base}",
        "role": "value",
        "of": None,
        "low": None,
        "high": None,
        "p": None,
        "q": None,
        "range": False,
        "signed": True,
        "question": view["question"],
        "values": plain(change.difference),
    }


def start_with(changes: Sequence[contract.Change]) -> contract.Start | None:
    """What a page with such changes shows first: the second model against the first, and the maps of both."""
    if not changes:
        return None
    first = changes[0]
    most = max(first["views"], key=lambda view: (view["surely"], view["beyond"]))
    column = f"{most['name']}_change"
    chosen = contract.Chosen(versus=0, together=True, colour=column, by=column)
    return {"model": first["model"], "head": None, "chosen": chosen}


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


def _listed(
    changes: Mapping[str, Change], heads: Sequence[str]
) -> tuple[list[contract.ChangedHead], list[contract.ChangedHead]]:
    """The heads that changed most, by certainty and then by size; and larger changes within their intervals."""
    rows = [
        (not surely, not beyond, -size, name, head)
        for name, change in changes.items()
        for head, (size, beyond, surely) in enumerate(zip(change.size, change.beyond, change.surely, strict=True))
        if np.isfinite(size) and size > 0
    ]
    first, largest = sorted(rows)[:SHOWN], sorted(rows, key=lambda row: row[2])[:SHOWN]
    within = [row for row in largest if row[1] and row not in first][:WITHIN]
    shown, larger = (
        [_row(changes[name], name, head, heads[head]) for *_, name, head in each] for each in (first, within)
    )
    return shown, larger


def _view(view: contract.View, change: Change) -> contract.ChangedView:
    known = int(np.isfinite(change.difference).sum())
    return {
        "name": view["name"],
        "title": view["title"],
        "unit": view["unit"],
        "how": _how(change, known),
        "beyond": int(change.beyond.sum()),
        "surely": int(change.surely.sum()),
        "known": known,
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


def _row(change: Change, view: str, head: int, name: str) -> contract.ChangedHead:
    return {
        "view": view,
        "head": name,
        "before": plain(change.before[head]),
        "after": plain(change.after[head]),
        "difference": plain(change.difference[head]),
        "low": plain(change.low[head]),
        "high": plain(change.high[head]),
        "q": plain(change.q[head]),
        "size": plain(change.size[head]),
        "beyond": bool(change.beyond[head]),
    }
