"""Capitals: "The capital of France is" -> " Paris". The corrupted prompt has another country.

The countries and capitals are those of the package's relation ``country_to_capital``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.data import content
from mechheads.patching.tasks.items import Item, Split, half

SOURCE = "mechheads' relation country_to_capital"
_TEMPLATES = (
    "The capital of {country} is",
    "Every school child in the world should know that the capital city of {country} is called",
    "Question: What is the capital of {country}? Answer:",
    "We flew to {country} and spent a week in its capital,",
)


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    pairs, i = half(content("relations", "country_to_capital")["pairs"], split), 0
    while True:
        (country, capital), (other, wrong) = (pairs[j] for j in rng.permutation(len(pairs))[:2])
        template = _TEMPLATES[i % len(_TEMPLATES)]
        clean, corrupted = (template.format(country=each) for each in (country, other))
        yield Item(clean, corrupted, f" {capital}", f" {wrong}", country)
        i += 1
