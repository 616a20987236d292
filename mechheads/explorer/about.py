"""``About``: what the provenance of scores says of the call that gave them, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mechheads.results.scores import HeadScores
from mechheads.studies.findings import shortened
from mechheads.studies.questions import ASKED

_SITES = {"z": "output", "q": "query", "k": "key", "v": "value", "pattern": "attention pattern"}
_CHANGES = {
    "Zero(": "its output is set to zero",
    "Mean(": "its output is replaced with its mean over the prompts",
    "MeanOf(": "its output is replaced with its mean over other texts",
    "Resample(": "its output comes from another prompt",
    "Scale(": "its output is scaled down",
    "UniformAttention(": "it attends to all tokens alike",
    "Patch(": "its activation comes from the other run",
}


@dataclass(frozen=True)
class About:
    """Scores, and what is known of the call that gave them.

    Attributes:
        scores: [layer, head].
        asked: what the prompts of an atlas ask for, as in ``Atlas.asked``.
    """

    scores: HeadScores
    asked: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str, otherwise: Any = None) -> Any:
        """An entry of the provenance."""
        return self.scores.provenance.get(name, otherwise)

    def selected(self, dim: str) -> str | None:
        """The label of a further dimension that was selected."""
        chosen = self.of("selected")
        label = chosen.get(dim) if isinstance(chosen, dict) else None
        return None if label is None else str(label)

    def all_of(self, name: str) -> list[str]:
        """The texts of an entry of the provenance that is a list."""
        found = self.of(name)
        return [str(each) for each in found] if isinstance(found, list) else []

    @property
    def answer(self) -> str:
        return ASKED["pairs"] if of_package(self.asked, "pairs") else "the answer"

    @property
    def metric(self) -> str:
        name = str(self.of("metric", ""))
        known = {
            "logit_diff": f"the logit difference between {self.answer} and the wrong one",
            "log_prob": f"the log-probability of {self.answer}",
            "accuracy": f"the share of prompts whose most likely next token is {self.answer}",
            "kl_divergence": "the distribution of the next token (KL divergence)",
        }
        return known.get(name, f"the metric {shortened(name)}" if name else "the metric")

    @property
    def site(self) -> str:
        return _SITES.get(str(self.of("site", "z")), "activation")

    @property
    def change(self) -> str:
        """What happens to the head, as the end of a sentence with "if"."""
        given = str(self.of("intervention", "")).rpartition("<locals>.")[-1]
        known = next((words for start, words in _CHANGES.items() if given.startswith(start)), None)
        return known or (f"{shortened(given)} changes it" if given else "it is changed")

    @property
    def is_share(self) -> bool:
        return bool(self.of("normalize")) or self.scores.unit.startswith("share ")


def of_package(asked: Mapping[str, str], what: str) -> bool:
    """Whether the pairs, the requests or the task of an atlas are those of the package."""
    return asked.get(what) == ASKED[what]


def differs_in(asked: Mapping[str, str]) -> str:
    """What the two prompts of a pair differ in."""
    return "the country" if of_package(asked, "pairs") else "what the two prompts differ in"
