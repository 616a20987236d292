"""Which heads a result tells from one that does nothing: the one rule of sentences, verdicts, marks and figures.

A score that is a mean over prompts is told from its null if its family p is at most ``LARGEST_P`` and its interval, if
it has one, leaves the null out. With c clusters of prompts, no family p is below 2 / 2**c, so with fewer than
``LEAST_CLUSTERS_TESTED`` nothing can be told this way, and what is left is the effect with its interval. Scores that
are no means, such as those of weights, are told by the q value of their own test.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from mechheads.heads import HeadId
from mechheads.results.kinds import kind_of
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


def carrying_prompt(scores: HeadScores, head: HeadId) -> int | None:
    """The prompt whose cluster alone carries a head's score: without it, the score halves or has the other sign.

    None if there is no such prompt, or the scores are no means over prompts for each head.

    >>> values = np.array([[[0.1, 0.0, 6.0, 0.1], [1.0, 2.0, 1.5, 1.0]]])
    >>> scores = HeadScores.from_values(values, name="effect", unit="logits", kind="demo")
    >>> from mechheads.results.evidence import carrying_prompt
    >>> carrying_prompt(scores, HeadId(0, 0)), carrying_prompt(scores, HeadId(0, 1))
    (2, None)
    """
    if scores.values is None or scores.extra_dims:
        return None
    found = int(carried_by(scores.values.values[head.layer, head.head], scores.dataset["cluster"].values))
    return None if found < 0 else found


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
