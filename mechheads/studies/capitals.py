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

TEMPLATE = "Every school child in the world should know that the capital city of {country} is called"
FITTED_ON = 8
"""How many items the task has."""


def capital_pairs(model: Model, n: int) -> PromptPairs | None:
    """Up to ``n`` pairs of prompts that ask for a capital, with every country in one pair only.

    Countries and capitals come from the relation ``country_to_capital``, and are one token each in the model's
    vocabulary. They are in an order that is arbitrary but always the same, and so are the pairs: a country has another
    partner only if the vocabulary lacks its own. None if there are fewer than two countries.
    """
    every = sorted(Relation.load(CAPITALS).pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    known = [[pair for pair in two if _is_known(model, *pair)] for two in zip(every[::2], every[1::2], strict=False)]
    left = [two[0] for two in known if len(two) == 1]
    pairs = [*(two for two in known if len(two) == 2), *zip(left[::2], left[1::2], strict=False)][:n]
    if not pairs:
        return None
    countries = [(one[0], other[0]) for one, other in pairs]
    capitals = [(f" {one[1]}", f" {other[1]}") for one, other in pairs]
    return PromptPairs.from_templates(TEMPLATE, {"country": countries}, answer=capitals)


def capital_task(model: Model) -> Task:
    """Naming capitals, without examples.

    Raises:
        ValueError: if the model's vocabulary has too few.
    """
    return relation_task(model, CAPITALS, shots=0, n=FITTED_ON)


def _is_known(model: Model, *words: str) -> bool:
    """Whether each word is one token of the model's vocabulary."""
    return all(single_token(f" {word}", model.tokenizer) is not None for word in words)
