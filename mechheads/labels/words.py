"""Word lists: the words of a language, used as rivals of relations whose targets should be words of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mechheads.data import content, names


@dataclass(frozen=True)
class WordList:
    """A list of words, such as those of English; case is ignored.

    As a rival of a relation it explains every pair whose target is in the list: a head that raises an English word
    for an English word may do something else than translate.

    Attributes:
        name: a short name.
        words: the words, without leading spaces.
        source: where they come from.

    Raises:
        ValueError: if the name is empty, there are no words, or one is not text.

    >>> mh.labels.WordList("fruit", ["apple", "Pear"]).explains("pomme", "pear")
    True
    """

    name: str
    words: Sequence[str]
    source: str = "not given"

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("name is empty; a word list needs a name")
        if isinstance(self.words, str) or not all(isinstance(word, str) and word.strip() for word in self.words):
            raise ValueError(f"words of {self.name!r} must be a list of words, not {str(self.words)[:50]!r}")
        folded = tuple(dict.fromkeys(word.strip().casefold() for word in self.words))
        if not folded:
            raise ValueError(f"word list {self.name!r} has no words; give at least one")
        object.__setattr__(self, "words", folded)

    def explains(self, source: str, target: str) -> bool:
        """Whether the target is one of the words; the source does not matter."""
        return target.casefold() in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.words)

    def __repr__(self) -> str:
        return f"<WordList {self.name!r}: {len(self.words)} words, {self.words[0]}, ...>"


def word_list_names() -> tuple[str, ...]:
    """Names of the word lists that come with the package.

    >>> from mechheads.labels.words import word_list_names
    >>> word_list_names()
    ('english_words',)
    """
    return names("words")


def load_word_list(name: str) -> WordList:
    """Load a word list of the package by its name."""
    return WordList(**content("words", name))
