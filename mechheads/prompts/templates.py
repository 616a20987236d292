"""The model's own chat template: its text, and what it writes, with the date and the options of ``mh.settings``.

A template may read the date of today, by ``strftime_now`` or by a variable. It gets the date of ``mh.settings``, or the
day on which the analysis began, and the result's provenance names it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import MutableMapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from mechheads.limits import current, settings

_VARIABLES = ("date_string", "current_date")
"""Variables by which templates ask for the date, and how they write it, as Llama 3 does."""
_WRITTEN = "%d %b %Y"
_NOW = re.compile(r"""\bstrftime_now\(\s*(['"])([^'"]*)\1\s*\)""")
"""Where a template writes the date of today."""
_OURS = ("messages", "add_generation_prompt", "continue_final_message")
"""What every chat decides by itself."""


@dataclass(frozen=True)
class _Call:
    """The day on which a call began, and where it notes how chats were read."""

    day: datetime.date
    notes: tuple[MutableMapping[str, Any], ...] = ()


_CALL: ContextVar[_Call | None] = ContextVar("chats", default=None)


class as_here(ContextDecorator):
    """Read chats inside as they are read here, on the same day, also in a process that gets this object.

    Args:
        notes: gets the date, the options and how control tokens are read, if they matter; so do the notes of the calls
            around this one.

    >>> from mechheads.prompts.templates import as_here, known_date
    >>> with mh.settings(date="2026-02-28"):
    ...     reading = as_here({})
    >>> with reading:
    ...     known_date()
    datetime.date(2026, 2, 28)
    """

    def __init__(self, notes: MutableMapping[str, Any] | None = None) -> None:
        now, call = current(), _CALL.get()
        self._given = {name: getattr(now, name) for name in ("date", "control_tokens", "template_options")}
        day = datetime.date.today() if call is None else call.day
        self._call = _Call(day, () if notes is None else (*(call.notes if call else ()), notes))
        self._before: list[tuple[settings, Token[_Call | None]]] = []

    def __enter__(self) -> None:
        given = settings(**self._given)
        given.__enter__()
        self._before.append((given, _CALL.set(self._call)))

    def __exit__(self, *exc: object) -> None:
        given, token = self._before.pop()
        _CALL.reset(token)
        given.__exit__(*exc)


def note(name: str, value: Any) -> None:
    """Note how chats are read, for the provenance of the results of this call."""
    call = _CALL.get()
    for notes in call.notes if call else ():
        notes[name] = value


def known_date() -> datetime.date:
    """The date that a template gets: that of the settings, or the day on which the analysis began, or today."""
    if (given := current().date) is not None:
        return datetime.date.fromisoformat(given)
    call = _CALL.get()
    return datetime.date.today() if call is None else call.day


def template_of(tokenizer: Any) -> str:
    """The text of a tokenizer's chat template.

    Raises:
        ValueError: if it has none, or several and none for ordinary chats.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        raise ValueError("this model has no chat template; give prompts as plain strings or token ids")
    if isinstance(template, str):
        return template
    if "default" not in template:
        raise ValueError(
            f"this model has several chat templates, {', '.join(map(repr, template))}, and none is the default; choose "
            "one: model.tokenizer.chat_template = model.tokenizer.chat_template[...]"
        )
    return template["default"]


def apply_template(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> Any:
    """What ``tokenizer.apply_chat_template`` gives, with the date and the options of the settings.

    Args:
        options: of ``apply_chat_template``; by default the text and not the ids.

    Raises:
        ValueError: if the template fails, does not name an option, or cannot be given the date.
    """
    template = template_of(tokenizer)
    given = _options(template) | _dated(template) | {"tokenize": False} | options
    try:
        return tokenizer.apply_chat_template(messages, **given)
    except Exception as error:  # a template is a program that comes with the model
        raise ValueError(f"this model's chat template fails: {error}; give prompts as plain strings") from error


def _options(template: str) -> dict[str, Any]:
    """The options of the settings, each of which the template must name."""
    options = dict(current().template_options or {})
    for name in options:
        if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", template):
            why = "is decided by each chat" if name in _OURS else "does not occur in this model's chat template"
            raise ValueError(f"template_options has {name!r}, which {why}; leave it out")
    if options:
        note("template_options", options)
    return options


def _dated(template: str) -> dict[str, Any]:
    """What gives a template the date: its own text with the date in it, or a variable if the settings have a date."""
    asks = re.search(r"\bstrftime_now\b", template) is not None
    given: dict[str, Any] = {}
    if current().date is not None and not asks:
        given = {name: known_date().strftime(_WRITTEN) for name in _VARIABLES if re.search(rf"\b{name}\b", template)}
    if not asks and not given:
        return {}
    note("date", known_date().isoformat())
    midnight = datetime.datetime.combine(known_date(), datetime.time())
    dated = _NOW.sub(lambda call: repr(midnight.strftime(call[2])), template)
    if "strftime_now(" in dated and current().date is not None:
        raise ValueError(
            "date: this model's chat template makes up the form of the date that it reads from the clock, so it cannot "
            "be given another; leave date out of mh.settings, or write the date into model.tokenizer.chat_template"
        )
    return given | ({} if dated == template else {"chat_template": dated})
