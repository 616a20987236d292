"""What models were trained to compute, in plain Python: programs whose variables belong to heads and MLPs.

The text of a program has a fixed length, and the answer comes after its last word. It is the value of the last
variable. To *interchange* a variable means to take its value from another text and to compute the ones after it again
(Geiger et al. 2021, arXiv 2106.02997).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.random import Generator

LETTERS = tuple("abcdefghij")
NAMES = ("ann", "bob", "cat", "dan", "eve", "gus", "ida", "jim")
COLOURS = ("red", "blue", "grey", "pink")
NUMBERS = tuple("12345678")
_VERBS, _WAYS, _OBJECTS = (
    ("met", "sang", "ate", "sat"),
    ("gave", "sent", "sold", "lent"),
    ("milk", "tea", "pens", "hats"),
)
_HELD_OUT = 4
"""One in so many texts is kept out of training."""


@dataclass(frozen=True)
class Variable:
    """A variable of a program, which one head or MLP has to compute.

    Attributes:
        name: its name.
        kind: what computes it.
        layer: the layer of the head or MLP.
        does: what it does, in words.
        value: gives its value from the words of a text and the values of the variables before it. None means that
            there is no value, and so no answer.
    """

    name: str
    kind: Literal["head", "mlp"]
    layer: int
    does: str
    value: Callable[[Sequence[str], Mapping[str, Any]], Any]


@dataclass(frozen=True)
class CausalProgram:
    """A program, and the texts that it is for.

    Attributes:
        words: all words of its texts and answers.
        n_layers: the layers of the model that is trained to it.
        variables: in the order in which they are computed.
        draw: draws a text.
    """

    words: tuple[str, ...]
    n_layers: int
    variables: tuple[Variable, ...]
    draw: Callable[[Generator], list[str]]

    def values(self, words: Sequence[str], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The values of all variables. Those that are given are not computed."""
        values: dict[str, Any] = {}
        for variable in self.variables:
            name = variable.name
            values[name] = given[name] if given and name in given else variable.value(words, values)
        return values

    def answer(self, words: Sequence[str], given: Mapping[str, Any] | None = None) -> str | None:
        """The value of the last variable."""
        return self.values(words, given)[self.variables[-1].name]

    def draw_one(self, rng: Generator, *, held_out: bool) -> list[str]:
        """A text that is kept out of training, or one that is not."""
        while is_held_out(words := self.draw(rng)) != held_out:
            pass
        return words


def is_held_out(words: Sequence[str]) -> bool:
    """Whether a text is kept out of training; its letters alone decide."""
    return zlib.crc32(" ".join(words).encode()) % _HELD_OUT == 0


def _before(words: Sequence[str], values: Mapping[str, Any]) -> list[str | None]:
    return [None, *words[:-1]]


def _follower(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The word whose word before is the last word."""
    found = [words[i] for i in range(len(words) - 1) if values["before"][i] == words[-1]]
    return found[0] if found else None


def _draw_induction(rng: Generator) -> list[str]:
    given = rng.permutation(LETTERS)[:7].tolist()
    return [*given, given[rng.integers(len(given) - 1)]]


def _duplicate(words: Sequence[str], values: Mapping[str, Any]) -> str:
    return "first" if words[5] == words[0] else "second"


def _draw_indirect_object(rng: Generator) -> list[str]:
    one, two = rng.permutation(NAMES)[:2].tolist()
    verb, way, thing = (rng.choice(some).item() for some in (_VERBS, _WAYS, _OBJECTS))
    return [one, "and", two, verb, ",", rng.choice([one, two]).item(), way, thing, "to"]


def _number(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The listed number whose word before is the last word."""
    return next((words[i] for i in (1, 3, 5) if values["before"][i] == words[-1]), None)


def _compared(words: Sequence[str], values: Mapping[str, Any]) -> str | None:
    """The number before the last word, held against the listed one."""
    return None if values["number"] is None else _order(values["before"][-1], values["number"])


def _order(asked: str, listed: str) -> str:
    return "more" if int(asked) > int(listed) else "less" if int(asked) < int(listed) else "same"


def _draw_comparison(rng: Generator) -> list[str]:
    colours, numbers = rng.permutation(COLOURS)[:3].tolist(), rng.choice(NUMBERS, 3).tolist()
    at, wanted = rng.integers(3), rng.choice(["more", "less", "same"])
    fits = [number for number in NUMBERS if _order(number, numbers[at]) == wanted]
    asked = rng.choice(fits or NUMBERS).item()
    listed = [word for pair in zip(colours, numbers, strict=True) for word in pair]
    return [*listed, ",", asked, colours[at]]


CAUSAL_PROGRAMS = {
    "induction": CausalProgram(
        LETTERS,
        2,
        (
            Variable("before", "head", 0, "writes at each word which word is before it", _before),
            Variable("follower", "head", 1, "copies the word that followed the last word earlier", _follower),
        ),
        _draw_induction,
    ),
    "indirect_object": CausalProgram(
        (*NAMES, *_VERBS, *_WAYS, *_OBJECTS, "and", ",", "to"),
        3,
        (
            Variable(
                "duplicate", "head", 0, "writes at the third name which name it repeats: first, second", _duplicate
            ),
            Variable(
                "inhibited", "head", 1, "moves this from the third name to the last word", lambda _, v: v["duplicate"]
            ),
            Variable(
                "mover",
                "head",
                2,
                "copies the other of the first two names",
                lambda words, v: words[2] if v["inhibited"] == "first" else words[0],
            ),
        ),
        _draw_indirect_object,
    ),
    "comparison": CausalProgram(
        (*COLOURS, *NUMBERS, ",", "more", "less", "same"),
        3,
        (
            Variable("before", "head", 0, "writes at each word which word is before it", _before),
            Variable("number", "head", 1, "moves the number after the first copy of the last word to it", _number),
            Variable(
                "compared",
                "mlp",
                2,
                "compares the number before the last word with the number that was moved",
                _compared,
            ),
        ),
        _draw_comparison,
    ),
}
