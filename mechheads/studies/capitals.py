"""The pairs and the task of the package: naming the capital of a country."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from mechheads.gating.tasks.shipped import relation_task
from mechheads.gating.tasks.task import Task
from mechheads.labels.relations import Relation
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs
from mechheads.studies.questions import CAPITALS

if TYPE_CHECKING:
    from mechheads.model.model import Model

TEMPLATES = (
    "Every school child in the world should know that the capital city of {country} is called",
    "The capital of {country} is the city of",
    "Question: What is the capital city of {country}? Answer:",
    "The government of {country} has its seat in the city of",
)
"""The wordings, which pairs take in turn."""
FITTED_ON = 8
"""How many items the task has."""


def capital_pairs(model: Model, n: int) -> PromptPairs | None:
    """Up to ``n`` pairs of prompts that ask for a capital, with every country in one pair only.

    Countries and capitals come from the relation ``country_to_capital``, and are one token each in the model's
    vocabulary. They are in an order that is arbitrary but always the same, and so are the pairs and their wordings,
    which take turns: a country has another partner only if the vocabulary lacks its own. Each pair is a cluster, named
    after its country. None if there are fewer than two countries.
    """
    every = sorted(Relation.load(CAPITALS).pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    known = [[pair for pair in two if _is_known(model, *pair)] for two in zip(every[::2], every[1::2], strict=False)]
    whole = [(TEMPLATES[at % len(TEMPLATES)], *two) for at, two in enumerate(known) if len(two) == 2]
    left = [two[0] for two in known if len(two) == 1]
    pairs = [*whole, *((TEMPLATES[0], *two) for two in zip(left[::2], left[1::2], strict=False))][:n]
    if not pairs:
        return None
    return PromptPairs(
        [wording.format(country=one[0]) for wording, one, _ in pairs],
        [wording.format(country=other[0]) for wording, _, other in pairs],
        answer=[f" {one[1]}" for _, one, _ in pairs],
        wrong=[f" {other[1]}" for _, _, other in pairs],
        cluster=[one[0] for _, one, _ in pairs],
    )


def capital_task(model: Model) -> Task:
    """Naming capitals, without examples.

    Raises:
        ValueError: if the model's vocabulary has too few.
    """
    return relation_task(model, CAPITALS, shots=0, n=FITTED_ON)


def _is_known(model: Model, *words: str) -> bool:
    """Whether each word is one token of the model's vocabulary."""
    return all(single_token(f" {word}", model.tokenizer) is not None for word in words)
