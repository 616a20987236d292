"""Messages during work: warnings at the user's own line, Ctrl-C that keeps finished work, short text."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the user's line that called into the package."""
    frame, depth, level = sys._getframe(1), 1, 1
    while frame is not None:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            level = depth
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)


class until_interrupted:
    """A ``with`` block that Ctrl-C ends without an error; ``interrupted`` tells whether it did."""

    def __init__(self) -> None:
        self.interrupted = False

    def __enter__(self) -> until_interrupted:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> bool:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.interrupted |= stopped
        return stopped

    def warn(self, done: str, rest: str = "the rest are NaN") -> None:
        """Warn how far the work came, if Ctrl-C ended it."""
        if self.interrupted:
            warn(interrupted_after(done, rest))

    def stop_unless(self, anything: object) -> None:
        """Stop the caller too, if Ctrl-C came before there was anything to return."""
        stop_if(self.interrupted and not anything)


def interrupted_after(done: str, rest: str = "") -> str:
    """How far interrupted work came, and what became of the rest."""
    return f"interrupted after {done}; {rest}" if rest else f"interrupted after {done}"


def stop_if(interrupted: bool) -> None:
    """Raise KeyboardInterrupt if the analysis that was called was interrupted and returned what it had computed."""
    if interrupted:
        raise KeyboardInterrupt


@contextmanager
def first_ctrl_c_waits(message: str) -> Iterator[Callable[[], bool]]:
    """A block in which the first Ctrl-C prints the message and the second interrupts; it yields ``came() -> bool``."""
    seen: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, usual)
        seen.append(number)
        print(message, file=sys.stderr)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, usual)


WIDTH = 80
"""The columns of a terminal."""


def wrapped(text: str) -> str:
    """The text in lines of at most 80 characters; continued lines are indented by two more."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines += textwrap.wrap(
                line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            )
    return "\n".join(lines)


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's error message, with the type of the error."""
    lines = str(error).strip().splitlines() or [""]
    sentence = lines[0].split(". ")[0].rstrip(".")
    sentence = sentence if len(sentence) <= 200 else f"{sentence[:200]}..."
    return f"{sentence} ({type(error).__name__})" if sentence else type(error).__name__


class Wrapped:
    """Something whose ``print`` is its ``repr`` in lines that fit into a terminal."""

    def __str__(self) -> str:
        return wrapped(repr(self))
