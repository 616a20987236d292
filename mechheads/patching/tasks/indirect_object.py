"""Indirect objects: "When Mary and John went to the store, John gave a drink to" -> " Mary".

Wang et al. 2022, arXiv 2211.00593. The corrupted prompt names three other people, none of them twice (their p_ABC). Our
sentences are our own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.patching.tasks.items import Item, Split, half

SOURCE = "Wang et al. 2022, Interpretability in the Wild, arXiv 2211.00593"
TEMPLATES = (
    "When {first} and {second} went to the store, {subject} gave a drink to",
    "When {first} and {second} walked in the garden, {subject} handed a flower to",
    "While {first} and {second} were at the school, {subject} passed a note to",
    "After {first} and {second} came home from the market, {subject} offered an apple to",
    "When {first} and {second} sat in the office, {subject} gave a book to",
    "Then, {first} and {second} waited for the train, and {subject} gave a ticket to",
    "While {first} and {second} were cleaning the kitchen, {subject} threw a towel to",
    "After {first} and {second} had a long walk, {subject} lent a jacket to",
)
_COMMON = """
    Mary John Tom James Dan Sarah Michael David Anna Paul Mark Lisa Kate Jack Emma Peter Robert Laura Alice Bob
    Susan Jane George Henry Simon Martin Rachel Linda Karen Kevin Brian Steven Jason Adam Eric Amy Julia Maria
    Richard Thomas William Charles Joseph Daniel Andrew Scott Frank Alex Max Sam Ben Luke Ryan Matthew Victoria Rose
    Helen
"""
NAMES = tuple(_COMMON.split())
ORDERS = ("ABBA", "BABA")
"""The other person is named first, or the subject is."""


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    names, templates, i = half(NAMES, split), half(TEMPLATES, split), 0
    while True:
        template, order = templates[i % len(templates)], ORDERS[i // len(templates) % 2]
        other, subject, *three = (names[j] for j in rng.permutation(len(names))[:5])
        first, second = (other, subject) if order == "ABBA" else (subject, other)
        yield Item(
            template.format(first=first, second=second, subject=subject),
            template.format(first=three[0], second=three[1], subject=three[2]),
            f" {other}",
            f" {subject}",
            other,
        )
        i += 1
