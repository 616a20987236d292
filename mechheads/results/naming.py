"""Names of results as headings and in lines: cut, listed, and with the heads that were ablated all the time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LEAST_REFUSAL = 0.1
"""A model that refuses a smaller share of harmful requests counts as not refusing; of openings with a smaller mean
probability there is a warning."""
_LONGEST = 80
_GONE = {"Zero(": "zeroed", "Mean": "mean-ablated", "Resample(": "resample-ablated", "Patch(": "patched"}
"""What happens to heads that are ablated all the time, by the beginning of the intervention."""


def given_that(about: Mapping[str, Any]) -> str:
    """Which heads are ablated all the time, by the provenance of a result, as the end of a title; empty if none is.

    >>> from mechheads.results.naming import given_that
    >>> given_that({"given": {"L0H1": "Zero()", "L2H3": "Zero()", "L4H0": "Mean()"}})
    'given that L0H1 and L2H3 are zeroed and L4H0 is mean-ablated'
    """
    given, by_rule = about.get("given"), dict[str, list[str]]()
    for head, rule in given.items() if isinstance(given, Mapping) else ():
        known = next((words for start, words in _GONE.items() if rule.startswith(start)), None)
        by_rule.setdefault(known or f"changed by {shortened(rule)}", []).append(head)
    said = [f"{listed(heads)} {'is' if len(heads) == 1 else 'are'} {gone}" for gone, heads in by_rule.items()]
    return f"given that {listed(said)}" if said else ""


def titled(name: str, about: Mapping[str, Any]) -> str:
    """The name of a result, with the heads that were ablated all the time by its provenance."""
    return ", ".join(filter(None, (name, given_that(about))))


def listed(parts: Sequence[str]) -> str:
    """Parts with commas, or with semicolons if they have commas themselves.

    >>> from mechheads.results.naming import listed
    >>> listed(["one", "two", "three"]), listed(["a, b", "c"])
    ('one, two and three', 'a, b; c')
    """
    if len(parts) < 2:
        return "".join(parts)
    if any("," in re.sub(r"\[[^]]*]", "", part) for part in parts[:-1]):
        return "; ".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a heading."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def heading(text: str) -> str:
    """The text as a heading, with a capital letter."""
    return text[:1].upper() + text[1:]


def refuses(refused: Mapping[str, Any] | None) -> bool | None:
    """Whether a model refuses enough to speak of refusals, by ``provenance["refused"]``; None if nothing was judged."""
    return None if refused is None or not refused["of"] else refused["n"] >= LEAST_REFUSAL * refused["of"]


def refused_of(refused: Mapping[str, Any] | None) -> str:
    """How many requests a model refused, and how many answers were not judged; empty if nothing was asked.

    >>> from mechheads.results.naming import refused_of
    >>> refused_of({"n": 6, "of": 8}), refused_of({"n": 0, "of": 8}), refused_of(None)
    ('refused 6 of 8', 'refused none of 8', '')
    >>> refused_of({"n": 6, "of": 8, "unjudged": 2})
    'refused 6 of 8, and 2 answers not in English are not judged'
    >>> refused_of({"n": 0, "of": 0, "unjudged": 10})
    'gave 10 answers not in English, which are not judged'
    """
    if refused is None:
        return ""
    counted, unjudged = f"refused {refused['n'] or 'none'} of {refused['of']}", refused.get("unjudged", 0)
    if not refused["of"]:
        return f"gave {unjudged} answers not in English, which are not judged"
    return f"{counted}, and {unjudged} answers not in English are not judged" if unjudged else counted
