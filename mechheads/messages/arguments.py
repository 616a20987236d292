"""Checks of arguments that many functions share, and suggestions for names that are not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable
from numbers import Real
from typing import Any, get_args


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The sentence ``Did you mean "..."?`` for the end of an error message, or nothing if no known name is close.

    Case, spaces, dashes and underscores are ignored.

    >>> did_you_mean("logit-dif", ["logit_diff", "log_prob"])
    ' Did you mean "logit_diff"?'
    >>> did_you_mean("xyz", ["logit_diff", "log_prob"])
    ''
    """
    if not isinstance(given, str) or not (plain := _plain(given)):
        return ""
    names = {_plain(name): name for name in known}
    found = difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    found = found or [name for name in sorted(names, key=len) if len(plain) > 3 and plain in name]
    return f' Did you mean "{names[found[0]]}"?' if found else ""


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).lower()


def check_known(name: str, value: object, known: Any) -> None:
    """Check that an argument is one of the known names.

    Args:
        known: the names, or the ``Literal`` of them that is the argument's type.

    Raises:
        ValueError: if it is not; the message lists them.

    >>> check_known("reduce", "meen", ("mean", "sum"))
    Traceback (most recent call last):
    ValueError: reduce is 'meen'; choose one of 'mean', 'sum'. Did you mean "mean"?
    """
    names: Collection[str] = get_args(known) or known
    if value not in names:
        meant = did_you_mean(value, names)
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, names))}.{meant}")


def check_several(name: str, texts: object) -> None:
    """Check that an argument for several texts is not a single one.

    Raises:
        ValueError: if it is.

    >>> check_several("texts", "Once upon a time")
    Traceback (most recent call last):
    ValueError: texts must be a list of texts, got one text; write ['Once upon a time']
    """
    if isinstance(texts, str):
        raise ValueError(f"{name} must be a list of texts, got one text; write [{texts[:40]!r}]")


def check_at_least(least: int, **numbers: int) -> None:
    """Check that no argument is smaller than this.

    Raises:
        ValueError: naming the first that is, or is no number.

    >>> check_at_least(1, k=5, draws=0)
    Traceback (most recent call last):
    ValueError: draws is 0; it must be at least 1
    """
    for name, number in numbers.items():
        if not isinstance(number, Real) or number < least:
            raise ValueError(f"{name} is {number!r}; it must be at least {least}")
