"""Items of a circuit task, and the choice of those that a model's tokenizer can express."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from mechheads.prompts.tokens import Reader, encode

T = TypeVar("T")
Split = Literal["train", "test"]

NOT_ONE_TOKEN = "an answer is not one token"
NOT_ALIGNED = "the two prompts differ in their number of tokens"
TOO_LONG = "a prompt is longer than the model's context"
TWICE = "drawn before"


@dataclass(frozen=True)
class Item:
    """A clean and a corrupted prompt.

    Attributes:
        answer: what comes next in the clean prompt, with the space before it, if there is one.
        wrong: what comes next in the corrupted prompt, or what a model says that misses the point.
        cluster: what it shares with other items, such as a name or a country.
    """

    clean: str
    corrupted: str
    answer: str
    wrong: str
    cluster: str


@dataclass(frozen=True)
class Fitting:
    """An item in a model's tokens: the ids of its answers."""

    item: Item
    answer: int
    wrong: int


def half(things: Sequence[T], split: Split) -> list[T]:
    """Every other one, so that the splits share none.

    >>> from mechheads.patching.tasks.items import half
    >>> half("abcde", "train"), half("abcde", "test")
    (['a', 'c', 'e'], ['b', 'd'])
    """
    return list(things[0 if split == "train" else 1 :: 2])


def next_token(model: Reader, text: str, following: str) -> int | None:
    """The token with which a text continues; None if what follows is more than one, or changes those before it."""
    before, after = encode(text, 0, model)[0], encode(text + following, 0, model)[0]
    return after[-1] if after[:-1] == before else None


def fitting(model: Reader, items: Iterable[Item], n: int) -> tuple[list[Fitting], Counter[str]]:
    """The first ``n`` items that a model can express, and how many others were drawn, by what is wrong with them."""
    found: dict[tuple[str, str], Fitting] = {}
    dropped: Counter[str] = Counter()
    for item in items:
        key = item.clean, item.corrupted
        fitted = TWICE if key in found else _fitted(model, item)
        if isinstance(fitted, str):
            dropped[fitted] += 1
        else:
            found[key] = fitted
        if len(found) == n:
            break
    return list(found.values()), dropped


def _fitted(model: Reader, item: Item) -> Fitting | str:
    """An item in a model's tokens, or what is wrong with it."""
    try:
        answer, wrong = (next_token(model, item.clean, text) for text in (item.answer, item.wrong))
        n_clean, n_corrupted = (len(encode(text, 0, model)[0]) for text in (item.clean, item.corrupted))
    except ValueError:
        return TOO_LONG
    if answer is None or wrong is None or answer == wrong:
        return NOT_ONE_TOKEN
    return Fitting(item, answer, wrong) if n_clean == n_corrupted else NOT_ALIGNED
