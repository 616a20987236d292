"""Verdicts on every head: yes, no or unclear, by the rule of the kind of its scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mechheads.results.evidence import LEAST_CLUSTERS_TESTED, criterion, differs as differ, is_tested, null_of
from mechheads.results.record import FIRST, Rule
from mechheads.results.scores import HeadScores

LEAST_RESTORED = 0.05
"""The share of the difference that a head must restore for a yes."""
LEAST_DIRECT = 0.05
"""The share of the logit difference that a head must add for a yes."""
LEAST_GATE = 0.5
"""The gate from which on a head has a role."""

OUTCOMES = YES, NO, UNCLEAR = "yes", "no", "unclear"


class Verdicts(NamedTuple):
    """A rule in words, and for which heads each verdict holds, [layer, head]. The first that holds counts."""

    rule: str
    holds: dict[str, Any]

    def values(self) -> list[str | None]:
        """The verdict on each head; None if none holds."""
        verdicts = np.select([*self.holds.values()], [*self.holds], "")
        return [verdict or None for verdict in verdicts.ravel().tolist()]


def differs(scores: HeadScores) -> Verdicts:
    """Yes if a score differs from that of a head that does nothing."""
    return _beyond(scores, "Yes if it {test}; otherwise unclear.", 0.0)


def restored(scores: HeadScores) -> Verdicts:
    """Yes if a share is large enough, no if it is surely smaller."""
    rule = (
        f"Yes if it is at least {LEAST_RESTORED:g} in either direction and {{test}}; no if the whole interval lies "
        f"within \u00b1{LEAST_RESTORED:g}."
    )
    return _beyond(scores, rule, LEAST_RESTORED)


def added(scores: HeadScores) -> Verdicts:
    """Yes if a part of the logits is large enough beside the whole, no if it is surely smaller."""
    total = scores.dataset["total"].values.mean() if "total" in scores.dataset else np.nan
    least = LEAST_DIRECT * abs(float(total)) if np.isfinite(total) else 0.0
    attributed = str(scores.provenance.get("attributed", ""))
    whole = "logit" if attributed.startswith("the logit ") else "logit difference"
    rule = (
        f"Yes if it adds at least {LEAST_DIRECT:.0%} of the mean {whole} ({least:.2g} logits) in either direction and "
        "{test}; no if the whole interval is smaller."
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


def _beyond(scores: HeadScores, rule: str, least: float) -> Verdicts:
    """Yes if the score is so large and differs from the null; no if its whole interval is nearer.

    With too few prompts for a test over heads, the effect and its interval alone decide: yes if all of it is so large.

    Args:
        rule: with a place for the test.
    """
    null = null_of(scores) or 0.0
    value, low, high = (scores.dataset[name].values - null for name in ("score", "ci_low", "ci_high"))
    if is_tested(scores):
        test, surely = f"differs from {null:g} ({criterion(scores)})", (np.abs(value) >= least) & differ(scores)
    else:
        surely = (np.where(value > 0, low, -high) >= least) & (least > 0)
        test = (
            f"its whole interval is (with fewer than {LEAST_CLUSTERS_TESTED} prompts, no test over heads is possible)"
        )
    holds = {
        YES: surely,
        NO: np.maximum(np.abs(low), np.abs(high)) < least,
        UNCLEAR: np.isfinite(value),
    }
    return Verdicts(rule.format(test=test), holds)


_RULES: dict[Rule, Callable[[HeadScores], Verdicts]] = {
    "metric": restored,
    "differs": differs,
    "added": added,
    "labelled": labelled,
    "among_first": among_first,
    "in_every_start": in_every_start,
}


def verdicts(scores: HeadScores, rule: Rule) -> Verdicts:
    """The verdicts on all heads by a rule."""
    return _RULES[rule](scores)
