"""How a command ends that cannot go on: with one sentence, in the words of the command line."""

from __future__ import annotations

import errno
import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

_OTHER_NAMES = {
    "model": ("name_or_path", "models"),
    "skip": ("only and skip",),
}
"""The names that functions have for an option besides its own."""
_NOT_HERE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors of a folder that another folder may not have."""
_PYTHON = re.compile(r"\bmh\.\w|\b[a-z_]+=[^\s=]|\w\(")
"""What only Python takes: a name of the package, a keyword argument, a call."""


class Command(TyperCommand):
    """A command that tells errors in a sentence: of what was given, of files and folders, of memory."""

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(limit=200)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "Interrupted before there was a result.", err=True)
            raise typer.Exit(130) from stop
        except Exception as error:
            if not _is_told(error):
                raise
            options = {param.name: param.opts[0] for param in self.params if param.opts[0].startswith("--")}
            typer.echo(f"Error: {in_options(_sentence(error, '--out' in options.values()), options)}", err=True)
            raise typer.Exit(1) from error


def _is_told(error: Exception) -> bool:
    """Whether an error is about what was given or about the machine; anything else is a mistake of the package."""
    if isinstance(error, (typer.Exit, typer.Abort)) or getattr(error, "errno", None) == errno.EPIPE:
        return False
    kinds = (ValueError, OSError, ImportError, MemoryError, sqlite3.Error)
    return isinstance(error, kinds) or _is_out_of_memory(error) or _is_raised_here(error)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _is_raised_here(error: Exception) -> bool:
    """Whether a RuntimeError is a message of the package, and not of a library below it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    home = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return type(error) is RuntimeError and home.split(".")[0] == "mechheads"


def _sentence(error: Exception, has_out: bool) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if _is_out_of_memory(error):
        return f"memory ran out ({text})"
    if isinstance(error, sqlite3.Error):
        return f"the ledger cannot be read or written: {text}"
    if not isinstance(error, OSError) or error.errno is None:
        return text
    what = f"{error.filename}: " if error.filename else ""
    reason = (error.strerror or text)[0].lower() + (error.strerror or text)[1:]
    elsewhere = "; give another folder with --out" if has_out and error.errno in _NOT_HERE else ""
    return f"{what}{reason}{elsewhere}"


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of a function in the words of a command: with options for arguments, and no advice for Python alone."""
    known = {other: option for name, option in options.items() for other in (name, *_OTHER_NAMES.get(name, ()))}
    if not known:
        return text
    names = "|".join(sorted(known, key=len, reverse=True))
    unmistakable = "|".join(name for name in known if "_" in name) or "$^"
    text = re.sub(rf"(?<![\w.(-])({names})=(?:\"([^\"]*)\"|'([^']*)'|([\w.+-]+))", _given(known), text)
    before, after = (
        r"^|(?<=[;.:] )|(?<=\bleave )|(?<=\bwithout )",
        r" (?:is|are|has|contains|leave|out)\b|: |[ ,]'|[.,;]|$",
    )
    for told in (rf"(?:{before})({names})(?={after})", rf"\b({unmistakable})\b"):
        text = re.sub(told, lambda found: known[found[1]], text)
    first, *advice = re.split(r"(?<=[;.]) ", text)
    taken = [part for part in advice if not _PYTHON.search(part)]
    return " ".join([first, *taken]).rstrip(" ;,:.") if len(taken) < len(advice) else text


def _given(known: Mapping[str, str]) -> Any:
    """What puts an option and its value in the place of a keyword argument."""

    def put(found: re.Match[str]) -> str:
        return f"{known[found[1]]} {next(value for value in found.groups()[1:] if value is not None)}"

    return put


def fail(wrong: str, given: object, names: Sequence[str] = ()) -> typer.BadParameter:
    """The error of an option's value; it names the one that may be meant."""
    from mechheads.messages.arguments import did_you_mean

    return typer.BadParameter(f"{wrong}.{did_you_mean(given, names)}".removesuffix("."))
