"""``Column``: what the page says of a column of an atlas' table, and the rules by which verdicts follow from scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mechheads.results.scores import HeadScores
from mechheads.studies.findings import FDR, FIRST, LEAST_GATE, null_of

LEAST_RESTORED = 0.05
"""The share of the difference that a head must restore for a yes."""
LEAST_DIRECT = 0.05
"""The share of the logit difference that a head must add for a yes."""

OUTCOMES = YES, NO, UNCLEAR = "yes", "no", "unclear"

ON_TEXT, BY_WEIGHTS, IN_TASKS, IN_REFUSALS, ROLES_GROUP = "On text", "By weights", "In tasks", "In refusals", "Roles"
YOUR_OWN = "Your own"
"""The headings under which columns stand."""


class Verdicts(NamedTuple):
    """A rule in words, and for which heads each verdict holds, [layer, head]. The first that holds counts."""

    rule: str
    holds: dict[str, Any]

    def values(self) -> list[str | None]:
        """The verdict on each head; None if none holds."""
        verdicts = np.select([*self.holds.values()], [*self.holds], "")
        return [verdict or None for verdict in verdicts.ravel().tolist()]


Rule = Callable[[HeadScores], Verdicts]
"""How verdicts follow from scores."""


def differs(scores: HeadScores) -> Verdicts:
    """Yes if a score differs from that of a head that does nothing, by its interval and q."""
    null = null_of(scores) or 0.0
    interval = f"the interval excludes {null:g} and " if np.isfinite(scores.dataset["ci_low"].values).any() else ""
    rule = f"Yes if {interval}q is at most {FDR:g}; otherwise unclear."
    return _beyond(scores, rule, null=null)


def restored(scores: HeadScores) -> Verdicts:
    """Yes if a share is large enough, no if it is surely smaller."""
    rule = (
        f"Yes if it is at least {LEAST_RESTORED:g} in either direction, the interval excludes 0 and q is at most "
        f"{FDR:g}; no if the whole interval lies within \u00b1{LEAST_RESTORED:g}."
    )
    return _beyond(scores, rule, LEAST_RESTORED)


def added(scores: HeadScores) -> Verdicts:
    """Yes if a part of the logits is large enough beside the whole, no if it is surely smaller."""
    total = scores.dataset["total"].values.mean() if "total" in scores.dataset else np.nan
    least = LEAST_DIRECT * abs(float(total)) if np.isfinite(total) else 0.0
    attributed = str(scores.provenance.get("attributed", ""))
    whole = "logit" if attributed.startswith("the logit ") else "logit difference"
    rule = (
        f"Yes if it adds at least {LEAST_DIRECT:.0%} of the mean {whole} ({least:.2g} logits) in either "
        f"direction, the interval excludes 0 and q is at most {FDR:g}; no if the whole interval is smaller."
    )
    return _beyond(scores, rule, least)


def labelled(labels: HeadScores) -> Verdicts:
    """Yes if a head has a category."""
    data, settings = labels.dataset, labels.provenance
    sizes = (*data["score"].shape[:2], -1)
    reached = np.isfinite(data["score"].values).reshape(sizes).any(-1)
    if settings["rule"] == "maps":
        rule = f"Yes if phi is at least {settings['tau']:g}, the paper's rule."
    else:
        rule = (
            f"Yes if phi exceeds that of shuffled targets by at least {settings['floor']:g} with q of at most "
            f"{settings['fdr']:g}; unclear if it is as significant but smaller."
        )
    member, below = (data[name].values.reshape(sizes).any(-1) & reached for name in ("member", "below_floor"))
    return Verdicts(rule, {YES: member, UNCLEAR: below, NO: reached})


def among_first(scores: HeadScores) -> Verdicts:
    """Yes if a score is among the largest, or the furthest from 0 if some are below; unclear in a tie for the last."""
    value, low, high = (scores.dataset[name].values for name in ("score", "ci_low", "ci_high"))
    size, end = np.abs(value), np.fmax.reduce(np.abs([value, low, high]))
    in_order = np.sort(size[np.isfinite(size)])[::-1]
    tenth = in_order[min(FIRST, in_order.size) - 1] if in_order.size else np.inf
    largest = "furthest from 0" if (value < 0).any() else "largest"
    rule = (
        f"Yes if it is among the {FIRST} {largest}; unclear if its interval reaches the {FIRST}th, or more heads share "
        "this value; otherwise no."
    )
    first = size >= tenth if (size >= tenth).sum() <= FIRST else size > tenth
    return Verdicts(rule, {YES: first, UNCLEAR: end >= tenth, NO: np.isfinite(value)})


def in_every_start(scores: HeadScores) -> Verdicts:
    """Yes if a gate is open enough in every fit."""
    values = scores.dataset["values"].values
    reached, has = np.isfinite(values).all(-1), values >= LEAST_GATE
    rule = f"Yes if it is at least {LEAST_GATE:g} in every start, no if in none."
    return Verdicts(rule, {YES: has.all(-1) & reached, NO: ~has.any(-1) & reached, UNCLEAR: reached})


def is_tested(scores: HeadScores) -> bool:
    """Whether scores can be told from that of a head that does nothing: intervals alone are of single heads."""
    return null_of(scores) is not None and bool(np.isfinite(scores.dataset["q_value"].values).any())


def _beyond(scores: HeadScores, rule: str, least: float = 0.0, null: float = 0.0) -> Verdicts:
    """Yes if the score is so large, its interval excludes the null and q is small; no if the interval lies within."""
    value, low, high = (scores.dataset[name].values - null for name in ("score", "ci_low", "ci_high"))
    q = scores.dataset["q_value"].values
    outside = (low > 0) | (high < 0) | ~np.isfinite(low).any()
    holds = {
        YES: (np.abs(value) >= least) & outside & (q <= FDR),
        NO: np.maximum(np.abs(low), np.abs(high)) < least,
        UNCLEAR: np.isfinite(value),
    }
    return Verdicts(rule, holds)


@dataclass(frozen=True)
class Column:
    """A column that has a value of its own, and what the page says of it.

    Attributes:
        label, unit, meaning: its name for people, the unit of its values, and what they measure.
        group: the heading under which it stands.
        signed: whether values can be negative; then the first heads are those furthest from 0.
        sentence: what a ``{value}`` says of a head; it may name its ``{unit}`` and ``{relation}``.
        rule: how a verdict on each head follows from the scores.
        texts, change: what yes, no and unclear say of a head, and what could change each.
        judges: the result of the atlas that the rule reads, if these are not the view's own scores.
        method: the name of the analysis, and how it measures: for the end of the page.
        cautions: what may not be concluded from it.
        part: what the view is in ``TENSIONS``.
    """

    label: str
    unit: str
    meaning: str
    group: str
    signed: bool = False
    sentence: str = ""
    rule: Rule = differs
    texts: tuple[str, str, str] = ("It differs from 0.", "", "These prompts do not settle it.")
    change: tuple[str, str, str] = ("Other prompts.", "", "More prompts.")
    judges: str | None = None
    method: tuple[str, str] | None = None
    cautions: tuple[str, ...] = ()
    part: str = ""
