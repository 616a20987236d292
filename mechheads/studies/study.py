"""Work in several stages: each is timed and announced, and Ctrl-C keeps what is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mechheads.files.csv_tables import write_csv
from mechheads.limits import Limits
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult
from mechheads.units import show_seconds

if TYPE_CHECKING:
    import pandas as pd


QUICK_RELATIONS = ("country_to_capital", "adjective_to_comparative", "name_copying", "english_to_spanish")
"""The relations of a first look."""


def teller(progress: bool) -> Callable[[str], None]:
    """A function that prints a text on stderr, or does nothing without ``progress``."""
    return (lambda text: print(text, file=sys.stderr)) if progress else (lambda text: None)


def about_seconds(seconds: float, limits: Limits) -> str:
    """An estimate of the time in this process, as text.

    >>> from mechheads.limits import Limits
    >>> from mechheads.studies.study import about_seconds
    >>> about_seconds(42, Limits())
    'about 42 s'
    """
    return f"about {show_seconds(seconds)}{'' if limits.workers is None else ' without workers'}"


@dataclass
class Stages:
    """The record of work in several stages.

    Attributes:
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work.
    """

    seconds: dict[str, float] = field(default_factory=dict, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)
    interrupted: bool = field(default=False, kw_only=True)

    @contextmanager
    def stage(self, name: str, progress: bool) -> Iterator[None]:
        """Time a stage, and print its name on stderr when it begins."""
        start = time.perf_counter()
        teller(progress)(f"{name} ...")
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end this block only, and note it."""
        with until_interrupted() as work:
            yield
        if work.interrupted:
            self.interrupted = True
            self.notes.append("interrupted: these are the results until then; heads that were not reached are NaN")

    @contextmanager
    def or_left_out(self, name: str) -> Iterator[None]:
        """Leave out a stage that raises a ValueError, and note why."""
        try:
            yield
        except ValueError as error:
            self.notes.append(f"{name} left out: {error}")

    @property
    def times(self) -> str:
        """The stages with their times, as text."""
        return ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in self.seconds.items())

    @property
    def closing_lines(self) -> list[str]:
        """The last lines of a summary: times and notes."""
        return [f"Time       {self.times}", *(f"Note       {note}" for note in self.notes)]


def save_parts(
    folder: str | Path, results: Mapping[str, HeadScores | TableResult], tables: Mapping[str, pd.DataFrame]
) -> list[Path]:
    """Write each result to ``name.nc``, and each table that has rows to ``name.csv``; no file is left half written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = [scores.save(folder / f"{name}.nc") for name, scores in results.items()]
    for name, table in tables.items():
        if len(table):
            written.append(folder / f"{name}.csv")
            write_csv(table, written[-1])
    return written


@runtime_checkable
class MayBePartial(Protocol):
    """A result that lists what an interrupt left out, and may say that there was one."""

    @property
    def missing(self) -> Sized: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...


def stop_if_partial(result: MayBePartial) -> None:
    """End the work if an analysis was interrupted: it returns a partial result and raises nothing."""
    stop_if(len(result.missing) > 0 or bool(result.provenance.get("interrupted")))
