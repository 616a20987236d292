"""Ctrl-C ends long work early and keeps what is finished."""

from __future__ import annotations

from types import TracebackType

from mechheads.messages.warn import warn


class until_interrupted:
    """Run a ``with`` block to its end or until Ctrl-C, and continue after it in both cases.

    One object can guard several blocks, one after another. Other exceptions leave the block as usual, and so does a
    second Ctrl-C before the code after the block is reached.

    Attributes:
        interrupted: whether Ctrl-C ended a block.

    >>> from mechheads.messages.interrupted import until_interrupted
    >>> with until_interrupted() as work:
    ...     raise KeyboardInterrupt
    >>> work.interrupted
    True
    """

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
    """How far interrupted work came, and what became of the rest.

    >>> from mechheads.messages.interrupted import interrupted_after
    >>> interrupted_after("12 of 40 heads", "the rest are NaN")
    'interrupted after 12 of 40 heads; the rest are NaN'
    """
    return f"interrupted after {done}; {rest}" if rest else f"interrupted after {done}"


def stop_if(interrupted: bool) -> None:
    """Stop the caller too, if an analysis that it called was interrupted and returned what it had.

    Raises:
        KeyboardInterrupt: if ``interrupted`` is true.
    """
    if interrupted:
        raise KeyboardInterrupt
