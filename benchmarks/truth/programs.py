"""What compiled programs compute, in plain Python, texts for them, and what their heads do.

``compile_programs.py`` has the same programs in RASP, and ``compile_phi3.py`` one as a graph. A program gives a value
for each word of a text, which depends on this word and the ones before it, or None where it has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numpy.random import Generator

from mechheads.testing.known import KnownNode

LETTERS = tuple("abcdefgh")
LONGEST = 15
"""Words of a text."""


@dataclass(frozen=True)
class Program:
    """A program in plain Python, and the truth of its heads.

    Attributes:
        run: gives the values of a text.
        draw: draws a text in which the last word has a value.
        heads: the heads that the compiler made for it.
    """

    run: Callable[[Sequence[str]], list[str | None]]
    draw: Callable[[Generator], list[str]]
    heads: tuple[KnownNode, ...]


def reverse(words: Sequence[str]) -> list[str | None]:
    """After a bar, the words before it from the last to the first; nothing more after a second bar."""
    values: list[str | None] = []
    for i in range(len(words)):
        bars = [k for k in range(i + 1) if words[k] == "|"]
        source = 2 * bars[0] - 1 - i if len(bars) == 1 else -1
        values.append(words[source] if source >= 0 else None)
    return values


def induction(words: Sequence[str]) -> list[str | None]:
    """The word that followed this word earlier, if always the same one did."""
    values: list[str | None] = []
    for i, word in enumerate(words):
        followed = {words[k] for k in range(1, i + 1) if words[k - 1] == word}
        values.append(followed.pop() if len(followed) == 1 else None)
    return values


def pattern(words: Sequence[str]) -> list[str | None]:
    """From the third word on, whether this word and the two before it are a b c."""
    return [None if i < 2 else "yes" if [*words[i - 2 : i + 1]] == ["a", "b", "c"] else "no" for i in range(len(words))]


def histogram(words: Sequence[str]) -> list[str | None]:
    """How many words so far, this one included, had come as often when they came as this one has now."""
    times = [words[: i + 1].count(word) for i, word in enumerate(words)]
    return [str(times[: i + 1].count(each)) for i, each in enumerate(times)]


def distinct(words: Sequence[str]) -> list[str | None]:
    """How many different words there are so far."""
    return [str(len(set(words[: i + 1]))) for i in range(len(words))]


def majority(words: Sequence[str]) -> list[str | None]:
    """Which of the words a and b has come more often so far."""
    more = [words[: i + 1].count("a") - words[: i + 1].count("b") for i in range(len(words))]
    return ["a" if each > 0 else "b" if each < 0 else "tie" for each in more]


def brackets(words: Sequence[str]) -> list[str | None]:
    """Whether the brackets so far are closed, some are open, or one was closed that had not been opened: wrong."""
    values: list[str | None] = []
    depth = 0
    for word in words:
        depth += {"(": 1, ")": -1}.get(word, 0)
        wrong = depth < 0 or (values and values[-1] == "wrong")
        values.append("wrong" if wrong else "open" if depth else "closed")
    return values


def indirect_object(words: Sequence[str]) -> list[str | None]:
    """After "to", the one of the two names that has come once."""
    values: list[str | None] = []
    for i, word in enumerate(words):
        times = Counter(each for each in words[: i + 1] if each in LETTERS)
        is_asked = word == "to" and sorted(times.values()) == [1, 2]
        values.append(min(times, key=lambda name: times[name]) if is_asked else None)
    return values


def _some(rng: Generator, words: Sequence[str], least: int = 3) -> list[str]:
    return rng.choice(words, rng.integers(least, LONGEST + 1)).tolist()


def _draw_reverse(rng: Generator) -> list[str]:
    given = rng.choice(LETTERS, rng.integers(2, LONGEST // 2 + 1)).tolist()
    return [*given, "|", *given[::-1][: rng.integers(len(given))]]


def _draw_induction(rng: Generator) -> list[str]:
    given = rng.permutation(LETTERS)[: rng.integers(3, len(LETTERS) + 1)].tolist()
    return [*given, given[rng.integers(len(given) - 1)]]


def _draw_pattern(rng: Generator) -> list[str]:
    words = _some(rng, LETTERS[:4])
    return [*words[:-3], *"abc"] if rng.random() < 0.5 else words


def _draw_indirect_object(rng: Generator) -> list[str]:
    first, second = rng.permutation(LETTERS)[:2].tolist()
    before, between, after = (rng.choice(["and", ","], n).tolist() for n in rng.integers(0, 4, 3))
    return [*before, first, "and", second, *between, ",", rng.choice([first, second]).item(), *after, "to"]


_PREVIOUS = KnownNode("before", "attends to the previous word, and writes it", "previous-token")
_TIMES = KnownNode("times", "attends to all copies of this word so far, to count them", "duplicate-token")
PROGRAMS = {
    "reverse": Program(
        reverse,
        _draw_reverse,
        (
            KnownNode("bar", "attends to the bar, and writes its position", "delimiter"),
            KnownNode("reverse", "attends to the word as far before the bar as this one is after it, and copies it"),
        ),
    ),
    "induction": Program(
        induction,
        _draw_induction,
        (_PREVIOUS, KnownNode("induction", "attends to the word after a copy of this one", "induction")),
    ),
    "pattern": Program(
        pattern,
        _draw_pattern,
        (
            _PREVIOUS,
            KnownNode("after_a_b", "attends to the previous word: is it b after a?", "previous-token"),
        ),
    ),
    "histogram": Program(
        histogram,
        lambda rng: _some(rng, LETTERS[:4]),
        (_TIMES, KnownNode("histogram", "attends to all words with this word's count, to count them")),
    ),
    "distinct": Program(
        distinct,
        lambda rng: _some(rng, LETTERS[:6]),
        (_TIMES, KnownNode("distinct", "attends to all words that were new, to count them")),
    ),
    "majority": Program(
        majority,
        lambda rng: _some(rng, LETTERS[:4]),
        (
            KnownNode("share_of_a", "attends to all words, and writes the share of a"),
            KnownNode("share_of_b", "attends to all words, and writes the share of b"),
        ),
    ),
    "brackets": Program(
        brackets,
        lambda rng: _some(rng, ("(", ")", "x")),
        (
            KnownNode("opened", "attends to all opening brackets, to count them"),
            KnownNode("closed", "attends to all closing brackets, to count them"),
            KnownNode("wrongs", "attends to all words after which more were closed than opened, to count them"),
        ),
    ),
    "indirect_object": Program(
        indirect_object,
        _draw_indirect_object,
        (
            _TIMES,
            KnownNode("subject", "attends from the last word to the name that came again, and writes it"),
            KnownNode("indirect_object", "attends to the name that is not the subject, and copies it"),
        ),
    ),
    "phi3_induction": Program(
        induction,
        _draw_induction,
        (
            _PREVIOUS,
            KnownNode("induction", "attends to the word after a copy of this one", "induction"),
            KnownNode("room", "attends to this word, and clears it from where the answer is written"),
        ),
    ),
}
