"""Chat templates as programs of strangers: run in a limited time, and on a date that is known.

A template may ask for the date of today, by ``strftime_now`` or by a variable. It gets the date of ``mh.settings``, or
of the day on which the analysis began, and the result's provenance names it.
"""

from __future__ import annotations

import ctypes
import datetime
import re
import threading
from collections.abc import Callable, MutableMapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from mechheads.limits import current, settings

T = TypeVar("T")

SECONDS = 10.0
"""How long a template may take for one chat; usual ones take less than a millisecond."""
_VARIABLES = ("date_string", "current_date")
"""Variables by which templates ask for the date, and how they write it, as Llama 3 does."""
_WRITTEN = "%d %b %Y"
_OWN = r"\b{0}\s*(?:is\s+(?:not\s+)?defined|\|\s*default|=[^=])|\bif\s+(?:not\s+)?{0}\b"
"""How a template that has a text of its own for a variable names it."""
_DATES = "dates_of_mechheads"
_MACRO = (
    "{% macro strftime_now(format) %}"
    f"{{{{ {_DATES}[format] if format in {_DATES} else raise_exception('it makes up the form of a date') }}}}"
    "{% endmacro %}\n"
)
"""Put before a template, it gives the date that is known in place of today's; the line break is not written."""


@dataclass(frozen=True)
class _Call:
    """The day on which a call began, and where it notes how chats were read."""

    day: datetime.date
    notes: tuple[MutableMapping[str, Any], ...] = ()


_CALL: ContextVar[_Call | None] = ContextVar("chats", default=None)


class as_here(ContextDecorator):
    """Read chats inside as they are read here, on the same day, also in a process that gets this object.

    Args:
        notes: gets the date, if a template reads it, and how control tokens are read, if a text has some; so do those
            of the calls around this one.

    >>> from mechheads.prompts.templates import as_here, known_date
    >>> with mh.settings(date="2026-02-28"):
    ...     reading = as_here({})
    >>> with reading:
    ...     known_date()
    datetime.date(2026, 2, 28)
    """

    def __init__(self, notes: MutableMapping[str, Any] | None = None) -> None:
        now, call = current(), _CALL.get()
        self._given = now.date, now.control_tokens
        day = datetime.date.today() if call is None else call.day
        self._call = _Call(day, () if notes is None else (*(call.notes if call else ()), notes))
        self._before: list[tuple[settings, Token[_Call | None]]] = []

    def __enter__(self) -> None:
        date, control_tokens = self._given
        given = settings(date=date, control_tokens=control_tokens)
        given.__enter__()
        self._before.append((given, _CALL.set(self._call)))

    def __exit__(self, *exc: object) -> None:
        given, token = self._before.pop()
        _CALL.reset(token)
        given.__exit__(*exc)


def note(name: str, value: str) -> None:
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
    """What ``tokenizer.apply_chat_template`` gives, in a limited time and on the date that is known.

    Args:
        options: of ``apply_chat_template``; by default the text and not the ids.

    Raises:
        ValueError: if the template fails, does not end, or makes up the form of a date.
    """
    template = template_of(tokenizer)
    about = _read(template)
    if about.powers:
        raise ValueError(
            "this model's chat template computes powers of numbers (**), which may never end; give prompts as plain "
            "strings or token ids"
        )
    dated = about.dated({name: now for name in about.variables if (now := _variable(name, about))})
    if dated:
        note("date", known_date().isoformat())
    return in_time(lambda: tokenizer.apply_chat_template(messages, **{"tokenize": False} | dated | options))


def _variable(name: str, about: _Template) -> str | None:
    """The value of a variable that asks for the date; None if the template's own is used."""
    if name in about.defaults and (current().date is None or about.formats is not None):
        return None
    return known_date().strftime(_WRITTEN)


@dataclass(frozen=True)
class _Template:
    """What a template reads.

    Attributes:
        text: the template.
        formats: if it reads the date by ``strftime_now``, the forms in which it does.
        variables: the variables by which it asks for the date.
        defaults: those of them for which it has a text of its own.
        powers: whether it computes powers of numbers.
    """

    text: str
    formats: tuple[str, ...] | None
    variables: tuple[str, ...]
    defaults: tuple[str, ...]
    powers: bool

    def dated(self, variables: dict[str, str]) -> dict[str, Any]:
        """The arguments with which the template has the date that is known; none if it reads none."""
        if self.formats is None:
            return variables
        midnight = datetime.datetime.combine(known_date(), datetime.time())
        dates = {format: midnight.strftime(format) for format in self.formats}
        return {"chat_template": _MACRO + self.text, _DATES: dates, **variables}


@lru_cache(maxsize=64)
def _read(template: str) -> _Template:
    import jinja2

    try:
        tokens = [token for token in jinja2.Environment().lex(template) if token[1] != "whitespace"]
    except jinja2.TemplateError:
        tokens = []  # the template fails when it is used, and says why
    names = {value for _, kind, value in tokens if kind == "name"}
    formats = {_plain(value) for _, kind, value in tokens if kind == "string" and "%" in value}
    variables = tuple(name for name in _VARIABLES if name in names)
    powers = any(
        value == "**" and (before[1] in ("name", "integer", "float") or before[2] in (")", "]"))
        for before, (_, _, value) in pairwise(tokens)
    )
    return _Template(
        template,
        tuple(sorted(formats)) if "strftime_now" in names else None,
        variables,
        tuple(name for name in variables if re.search(_OWN.format(name), template)),
        powers,
    )


def _plain(literal: str) -> str:
    """The text of a literal of a template."""
    return literal[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape")


class _Stopped(BaseException):
    """Ends a thread that takes too long."""


class _Thread(threading.Thread):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True, name="chat template")
        self._work, self._context = work, copy_context()
        self._lock, self._ended = threading.Lock(), False
        self.found: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            try:
                self.found = self._context.run(self._work)
            except Exception as error:  # a template is a program that comes with the model
                self.error = error
            with self._lock:
                self._ended = True
        except _Stopped:
            pass

    def stop(self) -> None:
        """End the thread at its next step in Python."""
        with self._lock:
            if not self._ended and self.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_Stopped))


def in_time(work: Callable[[], T]) -> T:
    """What a chat template gives, if it ends within ``SECONDS``; it runs in a thread of its own.

    Raises:
        ValueError: if it fails or does not end.

    >>> from mechheads.prompts.templates import in_time
    >>> in_time(lambda: "a text")
    'a text'
    """
    thread = _Thread(work)
    thread.start()
    try:
        thread.join(SECONDS)
    finally:
        late = thread.is_alive()
        if late:
            thread.stop()
    if late:
        raise ValueError(
            f"this model's chat template did not end within {SECONDS:g} seconds; give prompts as plain strings or "
            "token ids"
        )
    if (error := thread.error) is not None:
        raise ValueError(f"this model's chat template fails: {error}; give prompts as plain strings") from error
    return thread.found
