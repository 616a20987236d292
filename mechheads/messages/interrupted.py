"""Ctrl-C ends long work early and keeps what is finished."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from mechheads.messages.warn import warn


class until_interrupted:
    """Run a ``with`` block to its end or until Ctrl-C, which ``interrupted`` tells, and continue after it."""

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
    """Raise KeyboardInterrupt if an analysis that was called was interrupted and returned what it had."""
    if interrupted:
        raise KeyboardInterrupt


@contextmanager
def first_ctrl_c_waits(message: str) -> Iterator[Callable[[], bool]]:
    """A block in which the first Ctrl-C prints the message, and the second interrupts; it gives whether one came."""
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
