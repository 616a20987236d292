"""Which requests of a file are harmful: labels as public files spell them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_HARMFUL = ("unsafe", "harmful", "toxic", "malicious")
_HARMLESS = (
    "safe",
    "unharmful",
    "harmless",
    "benign",
    "non_toxic",
    "not_harmful",
    "adversarial_benign",
    "vanilla_benign",
)
_XSTEST = (
    *("homonyms", "figurative_language", "safe_targets", "safe_contexts", "definitions", "historical_events"),
    *("real_group_nons_discr", "nons_group_real_discr", "discr", "privacy", "privacy_public", "privacy_fictional"),
)
"""The values of XSTest's column ``type``; the harmful contrast to each has ``contrast`` before it."""
_WORDS = (
    dict.fromkeys(_HARMFUL, True)
    | dict.fromkeys(_HARMLESS, False)
    | dict.fromkeys(_XSTEST, False)
    | {"contrast": True}
    | {f"contrast_{name}": True for name in _XSTEST}
)
"""Spellings of a label, and whether such a request is harmful."""
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_OF_ANSWERS = re.compile("response|answer|completion|output|final|refusal")
"""Names of columns that hold or judge answers, not requests."""
_NAMES = re.compile("(is_|prompt_|request_|harm_|safety_)*(label|labels|harmfulness|toxicity)")


@dataclass(frozen=True)
class HarmLabel:
    """A column that says which requests are harmful.

    Attributes:
        column: its name.
        harmful: for each of its values, whether such a request is harmful.
        unsure: why the column may mean something else; empty if it is used as it is.
        values: the values that occur.
    """

    column: str
    harmful: Mapping[Any, bool]
    unsure: str = ""
    values: tuple[str, ...] = ()

    def of(self, row: Mapping[str, Any]) -> bool | None:
        """Whether a row's request is harmful; None if it does not say."""
        return self.harmful.get(str(row.get(self.column)))


def harm_labels(rows: Sequence[Mapping[str, Any]], text: str) -> list[HarmLabel]:
    """The columns that look like labels of requests, those about the request itself first.

    Args:
        text: the column of the requests.

    Raises:
        ValueError: if a column has known spellings of a label and others; it is named.
    """
    columns = dict.fromkeys(name for row in rows for name in row if name != text)
    found = [label for name in columns if (label := _label(name, rows))]
    return sorted(found, key=lambda label: (bool(label.unsure), not re.match("prompt|request", _plain(label.column))))


def _plain(value: Any) -> str:
    """A spelling without case, spaces, signs and a whole number's decimal point."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"^([01])\.0$", r"\1", str(value).strip().lower())).strip("_")


def is_missing(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or value != value or not str(value).strip()


def _label(name: str, rows: Sequence[Mapping[str, Any]]) -> HarmLabel | None:
    values = [row.get(name) for row in rows]
    given = list(dict.fromkeys(str(value) for value in values if not is_missing(value)))
    plain, spelled = _plain(name), {value: _plain(value) for value in given}
    word = _WORDS.get(plain.removeprefix("is_"))
    of_words = {value: _WORDS[one] for value, one in spelled.items() if one in _WORDS}
    of_flags = {value: _FLAGS[one] for value, one in spelled.items() if one in _FLAGS}
    named = word is not None or _NAMES.fullmatch(plain) is not None
    known = of_flags if len(of_flags) > len(of_words) else of_words
    if not given or not (known if named else 2 * len(known) >= len(given)):
        return None
    if known is of_flags and not named and "label" not in plain:
        return None
    if len(known) < len(given):
        others = [value for value in given if value not in known]
        raise ValueError(
            f"column {name!r} looks like a label of harmful and harmless requests, but not all of its values are "
            f"known: {', '.join(map(repr, others[:5]))} beside {', '.join(map(repr, list(known)[:5]))}; "
            "choose rows by read_requests(path, where={...})"
        )
    if _OF_ANSWERS.search(plain):
        return HarmLabel(name, {}, "is about answers", tuple(given))
    if known is of_flags and word is False:
        known = {value: not flag for value, flag in known.items()}
    sure = known is of_words or word is not None or plain.endswith(("toxicity", "harmfulness"))
    return HarmLabel(name, known, "" if sure else f"does not say what {', '.join(known)} mean", tuple(given))
