"""Which heads a result tells from one that does nothing, the one rule of sentences, marks and figures; and verdicts.

A score that is a mean over prompts is told from its null if its family p is at most ``LARGEST_P`` and its interval, if
it has one, leaves the null out. With c clusters of prompts, no family p is below 2 / 2**c, so with fewer than
``LEAST_CLUSTERS_TESTED`` nothing can be told this way, and what is left is the effect with its interval. Scores that
are no means, such as those of weights, are told by the q value of their own test.

A verdict on a head is yes, no or unclear, by the rule of the kind of its scores.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Int

from mechheads.results.kinds import kind_of
from mechheads.results.record import FIRST, Rule
from mechheads.results.scores import HeadScores
from mechheads.results.stats import carried_by

LARGEST_P = 0.05
"""The largest family p of a head that is said to differ from the null."""
LARGEST_Q = 0.1
"""The largest q of such a head, if there are no values of prompts to flip."""
LEAST_CLUSTERS_TESTED = 6
"""The fewest clusters with which one head can have a family p of ``LARGEST_P``: 2 / 2**6 = 0.031."""


def null_of(scores: HeadScores) -> float | None:
    """The mean score of a head that does nothing; None if nothing is known of it."""
    statistics = scores.dataset.attrs.get("statistics")
    return kind_of(scores.kind).null if statistics is None else json.loads(statistics)["null"]


def n_prompts(scores: HeadScores) -> int:
    """How many prompts the scores are means over; 0 if they are no means."""
    return scores.dataset.sizes.get("prompt", 0)


def n_clusters(scores: HeadScores) -> int | None:
    """How many independent samples the means are over; None if the scores are no means."""
    return len(set(scores.dataset["cluster"].values.tolist())) if scores.values is not None else None


def has_null(scores: HeadScores) -> bool:
    """Whether scores were tested against a null at all, however few the prompts."""
    return null_of(scores) is not None and bool(np.isfinite(scores.dataset["p_value"].values).any())


def is_tested(scores: HeadScores) -> bool:
    """Whether a head can be told from one that does nothing: there is a test, and one head alone could pass it."""
    return has_null(scores) and clusters_needed(scores) is None


def clusters_needed(scores: HeadScores) -> int | None:
    """How many clusters of prompts a test over heads needs, if there are fewer; else None."""
    clusters = n_clusters(scores)
    return LEAST_CLUSTERS_TESTED if clusters is not None and clusters < LEAST_CLUSTERS_TESTED else None


def differs(scores: HeadScores) -> Bool[np.ndarray, "layer head *extra"]:
    """Which scores differ from that of a head that does nothing, among all that were measured.

    >>> values = np.array([[[0.7, 0.8, 0.75, 0.7, 0.8, 0.7], [0.0, 0.1, -0.1, 0.0, 0.1, -0.1]]])
    >>> differs(HeadScores.from_values(values, name="effect", unit="logits", kind="demo")).tolist()
    [[True, False]]
    """
    if not is_tested(scores):
        return np.zeros(scores.scores.shape, dtype=bool)
    test = criterion(scores)
    return excludes_null(scores) & (scores.dataset[test.statistic].values <= test.most)


def carrying_prompts(scores: HeadScores) -> Int[np.ndarray, "layer head"]:
    """The prompt whose cluster alone carries a head's score: without it, the score halves or has the other sign.

    -1 if there is no such prompt, or the scores are no means over prompts for each head.

    >>> values = np.array([[[0.1, 0.0, 6.0, 0.1], [1.0, 2.0, 1.5, 1.0]]])
    >>> scores = HeadScores.from_values(values, name="effect", unit="logits", kind="demo")
    >>> from mechheads.results.evidence import carrying_prompts
    >>> carrying_prompts(scores).tolist()
    [[2, -1]]
    """
    if scores.values is None or scores.extra_dims:
        return np.full((scores.n_layers, scores.n_heads), -1)
    return carried_by(scores.values.values, scores.dataset["cluster"].values)


def excludes_null(scores: HeadScores) -> Bool[np.ndarray, "layer head *extra"]:
    """Whose interval leaves the null out; all heads if the scores have no intervals."""
    null = null_of(scores) or 0.0
    low, high = (scores.dataset[end].values for end in ("ci_low", "ci_high"))
    return (low > null) | (high < null) | ~np.isfinite(low).any()


class Criterion(NamedTuple):
    """What a head must pass to be said to differ from the null.

    Attributes:
        statistic: the variable of the result.
        called: what sentences call it.
        most: its largest value.
    """

    statistic: str
    called: str
    most: float

    def __str__(self) -> str:
        return f"{self.called} at most {self.most:g}"


def criterion(scores: HeadScores) -> Criterion:
    """What heads must pass: family p of means over prompts, else q.

    >>> from mechheads.results.evidence import criterion
    >>> str(criterion(HeadScores.from_values(np.ones((1, 2, 6)), name="effect", unit="logits", kind="demo")))
    'family p at most 0.05'
    """
    by_family = bool(np.isfinite(scores.dataset["p_family"].values).any())
    return Criterion("p_family", "family p", LARGEST_P) if by_family else Criterion("q_value", "q", LARGEST_Q)


LEAST_RESTORED = 0.05
"""The share of the difference that a head must restore for a yes."""
LEAST_DIRECT = 0.05
"""The share of the logit difference that a head must add for a yes."""
LEAST_GATE = 0.5
"""The gate from which on a head has a role."""

Verdict = Literal["yes", "no", "unclear"]
YES, NO, UNCLEAR = OUTCOMES = get_args(Verdict)


class Verdicts(NamedTuple):
    """A rule in words, and for which heads each verdict holds, [layer, head]. The first that holds counts."""

    rule: str
    holds: dict[str, Any]

    def values(self) -> list[Verdict | None]:
        """The verdict on each head; None if none holds."""
        verdicts = np.select([*self.holds.values()], [*self.holds], "")
        return [verdict or None for verdict in verdicts.ravel().tolist()]


def _different(scores: HeadScores) -> Verdicts:
    """Yes if a score differs from that of a head that does nothing."""
    untested = f"Unclear with fewer than {LEAST_CLUSTERS_TESTED} prompts: no test over heads is possible."
    return _beyond(scores, "Yes if it {test}; otherwise unclear." if is_tested(scores) else untested, 0.0)


def _restored(scores: HeadScores) -> Verdicts:
    """Yes if a share is large enough, no if it is surely smaller."""
    rule = (
        f"Yes if it is at least {LEAST_RESTORED:g} in either direction and {{test}}; no if the whole interval lies "
        f"within \u00b1{LEAST_RESTORED:g}."
    )
    return _beyond(scores, rule, LEAST_RESTORED)


def _added(scores: HeadScores) -> Verdicts:
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


def _labelled(labels: HeadScores) -> Verdicts:
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


def _among_first(scores: HeadScores) -> Verdicts:
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


def _in_every_start(scores: HeadScores) -> Verdicts:
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
        test, surely = f"differs from {null:g} ({criterion(scores)})", (np.abs(value) >= least) & differs(scores)
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
    "metric": _restored,
    "differs": _different,
    "added": _added,
    "labelled": _labelled,
    "among_first": _among_first,
    "in_every_start": _in_every_start,
}


def verdicts(scores: HeadScores, rule: Rule) -> Verdicts:
    """The verdicts on all heads by a rule."""
    return _RULES[rule](scores)
