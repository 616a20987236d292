"""Arithmetic word problems: stories with random numbers, whose answer is a whole number below 100."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jack", "Kate", "Leo")
THINGS = ("apples", "books", "coins", "cards", "marbles", "pencils", "shells", "stamps", "stickers", "toys")
WARES = (("ball", "balls"), ("cup", "cups"), ("hat", "hats"), ("lamp", "lamps"), ("pen", "pens"), ("shirt", "shirts"))

Range = tuple[int, int]


@dataclass(frozen=True)
class Problem:
    """An arithmetic word problem.

    Attributes:
        story: the name of its story.
        question: the text, with numbers as digits.
        answer: a whole number from 2 to 99.
    """

    story: str
    question: str
    answer: int


@dataclass(frozen=True)
class _Story:
    """A template, the least and the greatest value of each of its numbers, and the answer as a function of them."""

    text: str
    ranges: tuple[Range, ...]
    answer: Callable[..., float]


_FEW, _SOME, _MANY = (2, 6), (4, 15), (15, 30)

STORIES: dict[str, _Story] = {
    "given": _Story(
        "{name} has {a} {things}. {friend} gives {name} {b} more. How many {things} does {name} have now?",
        (_SOME, _SOME),
        lambda a, b: a + b,
    ),
    "eaten": _Story(
        "{name} bakes {a} cookies and eats {b} of them. How many cookies are left?",
        (_SOME, _FEW),
        lambda a, b: a - b,
    ),
    "rows": _Story(
        "{name} plants {a} rows of tulips with {b} tulips in each row. How many tulips does {name} plant?",
        (_FEW, _FEW),
        lambda a, b: a * b,
    ),
    "shared": _Story(
        "{name} shares {a} {things} equally among {b} friends. How many {things} does each friend get?",
        ((6, 60), _FEW),
        lambda a, b: a / b,
    ),
    "price": _Story(
        "One {ware} costs {a} dollars. How many dollars do {b} {wares} cost?", (_FEW, _FEW), lambda a, b: a * b
    ),
    "change": _Story(
        "{name} buys a {ware} for {a} dollars and pays with {b} dollars. How many dollars does {name} get back?",
        (_SOME, _MANY),
        lambda a, b: b - a,
    ),
    "bus": _Story(
        "A bus leaves with {a} passengers. At the first stop {b} get off and {c} get on. How many passengers are on "
        "the bus now?",
        (_MANY, _SOME, _FEW),
        lambda a, b, c: a - b + c,
    ),
    "older": _Story(
        "{name} is {a} years old. {friend} is {b} years older. How old is {friend}?",
        (_SOME, _FEW),
        lambda a, b: a + b,
    ),
    "birthday": _Story(
        "{name} is {a} years old. In how many years will {name} be {b} years old?", (_SOME, _MANY), lambda a, b: b - a
    ),
    "ride": _Story(
        "{name} rides {a} kilometers every day. How many kilometers does {name} ride in {b} days?",
        (_SOME, (2, 4)),
        lambda a, b: a * b,
    ),
    "boxes": _Story(
        "{name} packs {a} {things} into boxes of {b}. How many boxes does {name} fill?",
        ((6, 60), _FEW),
        lambda a, b: a / b,
    ),
    "pages": _Story(
        "A book has {a} pages. {name} reads {b} pages on Monday and {c} pages on Tuesday. How many pages are left?",
        ((40, 80), _SOME, _SOME),
        lambda a, b, c: a - b - c,
    ),
    "compared": _Story(
        "{name} finds {a} {things} and {friend} finds {b}. How many more {things} does {name} find than {friend}?",
        (_MANY, _SOME),
        lambda a, b: a - b,
    ),
    "times": _Story(
        "{name} has {a} {things}. {friend} has {b} times as many. How many {things} does {friend} have?",
        (_SOME, (2, 4)),
        lambda a, b: a * b,
    ),
    "farm": _Story(
        "On a farm there are {a} cows, {b} sheep and {c} goats. How many animals is that in all?",
        (_SOME, _SOME, _FEW),
        lambda a, b, c: a + b + c,
    ),
    "chairs": _Story(
        "There are {a} tables with {b} chairs at each, and {c} more chairs stand by the wall. How many chairs are "
        "there?",
        (_FEW, _FEW, _FEW),
        lambda a, b, c: a * b + c,
    ),
    "savings": _Story(
        "{name} saves {a} dollars a week for {b} weeks and then spends {c} dollars. How many dollars are left?",
        (_FEW, _FEW, _FEW),
        lambda a, b, c: a * b - c,
    ),
    "oven": _Story(
        "A pie must bake for {a} minutes. {name} put it into the oven {b} minutes ago. How many more must it bake?",
        (_MANY, _SOME),
        lambda a, b: a - b,
    ),
    "teams": _Story(
        "In a class {a} girls and {b} boys form teams of {c}. How many teams are there?",
        (_SOME, _SOME, (2, 5)),
        lambda a, b, c: (a + b) / c,
    ),
    "lost": _Story(
        "{name} had {a} {things}, lost {b} of them and then got {c} new ones. How many {things} does {name} have now?",
        (_MANY, _SOME, _FEW),
        lambda a, b, c: a - b + c,
    ),
    "eggs": _Story(
        "{name} buys {a} boxes of {b} eggs. On the way home {c} eggs break. How many eggs are still whole?",
        (_FEW, (6, 12), (2, 5)),
        lambda a, b, c: a * b - c,
    ),
    "degrees": _Story(
        "{name} reads {a} degrees in the morning. By noon it is {b} degrees warmer. How many degrees is it at noon?",
        (_SOME, _FEW),
        lambda a, b: a + b,
    ),
    "class": _Story(
        "{name} teaches {a} pupils. {b} of them are girls and the others are boys. How many boys are there?",
        (_MANY, _SOME),
        lambda a, b: a - b,
    ),
    "missing": _Story(
        "{name} needs {a} {things} and has {b}. How many {things} are missing?", (_MANY, _SOME), lambda a, b: a - b
    ),
}

MOST = 100 * len(STORIES)
"""The largest number of problems: each story has at least 100 different ones."""


def arithmetic_problems(n: int = 200, seed: int = 0) -> list[Problem]:
    """Different word problems, in rounds of one problem of each story, in random order.

    Args:
        n: the number of problems, up to ``MOST``.
        seed: for names, things, numbers and order.

    Raises:
        ValueError: if ``n`` is out of range.

    >>> problem = arithmetic_problems(1)[0]
    >>> print(problem.question, problem.answer)
    In a class 8 girls and 14 boys form teams of 2. How many teams are there? 11
    """
    if not 1 <= n <= MOST:
        raise ValueError(f"n is {n}; give a number of problems from 1 to {MOST}")
    rng, names = np.random.default_rng(seed), list(STORIES)
    found: dict[str, Problem] = {}
    while len(found) < n:
        for i in rng.permutation(len(names)):
            while (problem := _tell(names[i], rng)).question in found:
                pass
            found[problem.question] = problem
    return list(found.values())[:n]


def _tell(name: str, rng: np.random.Generator) -> Problem:
    """One problem of a story; numbers are drawn again until the answer is a whole number from 2 to 99."""
    story, answer = STORIES[name], 0.5
    numbers: list[int] = []
    while not (2 <= answer <= 99 and answer == int(answer)):
        numbers = [int(rng.integers(low, high + 1)) for low, high in story.ranges]
        answer = story.answer(*numbers)
    first, second = rng.choice(len(NAMES), size=2, replace=False)
    ware, wares = WARES[rng.integers(len(WARES))]
    fields = {"name": NAMES[first], "friend": NAMES[second], "things": THINGS[rng.integers(len(THINGS))]}
    question = story.text.format(**fields, ware=ware, wares=wares, **dict(zip("abc", numbers, strict=False)))
    return Problem(name, question, int(answer))
