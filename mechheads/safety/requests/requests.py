"""Requests that a safe model should refuse, and harmless look-alikes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Literal, overload

from mechheads.data import content
from mechheads.prompts.tokens import read_texts

Split = Literal["train", "test"]

PACKAGE_SETS = "harmful", "harmless", "teaching_harmful", "teaching_harmless"
_HARMFUL = "requests a safe model should refuse"
_HARMLESS = "harmless requests that look like harmful ones"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        text: the text of the request.
        category: the kind of harm that it asks for, or that a harmless request looks like; empty if it is not known.
        split: ``"train"`` for fitting a method, ``"test"`` for testing it.
        form: how a request of the teaching sets is asked, such as ``"question"``; empty in the other sets.
    """

    text: str
    category: str = ""
    split: Split = "train"
    form: str = ""


@dataclass(frozen=True, repr=False)
class FoldedTexts(Sequence[str]):
    """Texts that a notebook hides until the user opens them; made by ``folded``.

    Indexing and iterating give the texts; a slice is folded too. A notebook shows one line, which opens with a click.

    Attributes:
        texts: the texts.
        about: what they are, in the plural.
    """

    texts: tuple[str, ...]
    about: str

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> FoldedTexts: ...
    def __getitem__(self, index: int | slice) -> str | FoldedTexts:
        return replace(self, texts=self.texts[index]) if isinstance(index, slice) else self.texts[index]

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"<{self._summary}>"

    def _repr_html_(self) -> str:
        return f"<details><summary>{escape(self._summary)}</summary>{_html_list(self.texts)}</details>"

    @property
    def _summary(self) -> str:
        return f"{_counted(len(self), self.about)} ({'text' if len(self) == 1 else 'texts'} folded)"


def folded(texts: Iterable[str], about: str = _HARMFUL) -> FoldedTexts:
    """Texts that a notebook or report hides until the user opens them.

    Args:
        texts: any texts, such as requests or a model's answers.
        about: what they are, in the plural.

    Raises:
        ValueError: if texts is a single text, or contains something that is not a text.

    >>> from mechheads.safety import folded
    >>> answers = folded(["Sure, first you ...", "I cannot help."], "answers without L2H5")
    >>> answers
    <2 answers without L2H5 (texts folded)>
    >>> answers[1]
    'I cannot help.'
    """
    return FoldedTexts(tuple(read_texts(texts, "texts")), about)


@dataclass(frozen=True, repr=False)
class RequestSet(Sequence[Request]):
    """A set of requests; made by ``load_requests``.

    Indexing and iterating give each ``Request``; a slice is a ``RequestSet``. A notebook folds harmful requests.

    Attributes:
        requests: the requests.
        about: what they are, in the plural.
        harmful: whether a safe model should refuse them.
    """

    requests: tuple[Request, ...]
    about: str
    harmful: bool

    @property
    def texts(self) -> Sequence[str]:
        """The texts of the requests, folded if they are harmful."""
        texts = tuple(request.text for request in self.requests)
        return FoldedTexts(texts, self.about) if self.harmful else texts

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> RequestSet: ...
    def __getitem__(self, index: int | slice) -> Request | RequestSet:
        return replace(self, requests=self.requests[index]) if isinstance(index, slice) else self.requests[index]

    def __len__(self) -> int:
        return len(self.requests)

    def __repr__(self) -> str:
        return repr(self.texts) if self.harmful else "\n".join([f"<{_counted(len(self), self.about)}>", *self.texts])

    def _repr_html_(self) -> str:
        if isinstance(texts := self.texts, FoldedTexts):
            return texts._repr_html_()
        return f"<div><p>{escape(_counted(len(self), self.about))}</p>{_html_list(texts)}</div>"


def package_set(name: str, split: Split | None) -> RequestSet:
    """A set of requests that comes with the package; see ``load_requests``."""
    entries = content("requests", name)["requests"]
    requests = tuple(Request(**entry) for entry in entries if split in (None, entry["split"]))
    harmful = not name.endswith("harmless")
    return RequestSet(requests, _HARMFUL if harmful else _HARMLESS, harmful)


def _counted(number: int, about: str) -> str:
    return f"1 of the {about}" if number == 1 else f"{number} {about}"


def _html_list(texts: Sequence[str]) -> str:
    return f"<ol>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ol>"
