"""Arithmetic word problems: stories with random numbers, whose answer is a whole number below 100.

The stories are in ``mechheads/data/tasks/math.json``: a text, the least and the greatest value of each of its numbers
a, b and c, and the answer, whose operations are done from left to right.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechheads.data import content

_DATA = content("tasks", "math")
STORIES: dict[str, Any] = _DATA["stories"]
MOST = 100 * len(STORIES)
"""The largest number of problems: each story has at least 100 different ones."""
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@dataclass(frozen=True)
class Problem:
    """An arithmetic word problem."""

    story: str
    question: str
    answer: int


def arithmetic_problems(n: int = 200, seed: int = 0) -> list[Problem]:
    """Different word problems, in rounds of one problem of each story, in random order."""
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
    numbers: dict[str, int] = {}
    while not (2 <= answer <= 99 and answer == int(answer)):
        numbers = dict(zip("abc", (int(rng.integers(low, high + 1)) for low, high in story["ranges"]), strict=False))
        answer = _computed(story["answer"].split(), numbers)
    names, things = _DATA["names"], _DATA["things"]
    first, second = rng.choice(len(names), size=2, replace=False)
    ware, wares = _DATA["wares"][rng.integers(len(_DATA["wares"]))]
    fields = {"name": names[first], "friend": names[second], "things": things[rng.integers(len(things))]}
    return Problem(name, story["text"].format(**fields, ware=ware, wares=wares, **numbers), int(answer))


def _computed(form: Sequence[str], numbers: dict[str, int]) -> float:
    """What operations on numbers give, such as "a", "-", "b", "+", "c", from left to right."""
    value: float = numbers[form[0]]
    for operation, number in zip(form[1::2], form[2::2], strict=True):
        value = _OPERATIONS[operation](value, numbers[number])
    return value
