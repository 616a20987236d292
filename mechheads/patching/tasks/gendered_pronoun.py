"""Gendered pronouns: "So Anna is a really great teacher, isn't" -> " she".

Mathwin et al. 2023, "Identifying a Preliminary Circuit for Predicting Gendered Pronouns in GPT-2 Small"; Vig et al.
2020, arXiv 2004.12265. The corrupted prompt has a name of the other gender.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.patching.tasks.items import Item, Split, half

SOURCE = "Mathwin et al. 2023, Identifying a Preliminary Circuit for Predicting Gendered Pronouns in GPT-2 Small"
_WOMEN = """
    Mary Sarah Anna Lisa Kate Emma Laura Alice Susan Jane Rachel Linda Karen Amy Julia Maria Victoria Rose Helen Lucy
    Elizabeth Margaret Nancy Barbara
"""
_MEN = """
    John Tom James David Michael Paul Mark Jack Peter Robert George Henry Simon Martin Kevin Brian Steven Jason Adam
    Eric Richard Thomas William Charles
"""
_TEMPLATES = (
    "So {name} is a really great {noun}, isn't",
    "I heard that {name} is a very good {noun}, isn't",
    "Everyone says {name} was the best {noun} in town, wasn't",
    "You know {name}, our new {noun}? I think",
)
_NOUNS = """
    friend teacher doctor neighbor lawyer cook singer writer student driver dancer manager
"""


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    groups = ((half(_WOMEN.split(), split), " she"), (half(_MEN.split(), split), " he"))
    i = 0
    while True:
        template = _TEMPLATES[i % len(_TEMPLATES)]
        (mine, answer), (others, wrong) = groups if rng.random() < 0.5 else groups[::-1]
        noun, name, other = rng.choice(_NOUNS.split()), rng.choice(mine), rng.choice(others)
        clean, corrupted = (template.format(name=each, noun=noun) for each in (name, other))
        yield Item(clean, corrupted, answer, wrong, str(name))
        i += 1
