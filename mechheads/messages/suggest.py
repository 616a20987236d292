"""Suggestions for names that are not known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


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
