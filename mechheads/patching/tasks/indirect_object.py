"""Indirect objects: "When Mary and John went to the store, John gave a drink to" -> " Mary".

Wang et al. 2022, arXiv 2211.00593. The corrupted prompt names three other people, none of them twice (their p_ABC). Our
sentences are our own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

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


class Sentence(NamedTuple):
    """A template and the people in it.

    Attributes:
        three: other people, for the corrupted prompt.
    """

    template: str
    order: str
    other: str
    subject: str
    three: tuple[str, ...]

    @property
    def named(self) -> tuple[str, str, str]:
        """The names in their order in the text; the last is the subject."""
        first, second = (self.other, self.subject) if self.order == "ABBA" else (self.subject, self.other)
        return first, second, self.subject

    def text(self, names: Sequence[str]) -> str:
        """The template with three names in it."""
        return self.template.format(first=names[0], second=names[1], subject=names[2])


def sentences(templates: Sequence[str], names: Sequence[str], rng: np.random.Generator) -> Iterator[Sentence]:
    """Sentences without end, whose templates and orders take turns."""
    for i in count():
        other, subject, *three = (names[int(j)] for j in rng.permutation(len(names))[:5])
        order = ORDERS[i // len(templates) % 2]
        yield Sentence(templates[i % len(templates)], order, other, subject, tuple(three))


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    for one in sentences(half(TEMPLATES, split), half(NAMES, split), rng):
        yield Item(one.text(one.named), one.text(one.three), f" {one.other}", f" {one.subject}", one.other)
