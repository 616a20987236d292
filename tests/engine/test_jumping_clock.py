"""A wall clock that is set hours forward and back, again and again, while an analysis runs."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from support.made_workers import MadeWorkers
from support.texts import CLEAN

EVERY_UNIT = Limits(tokens=1, logit_rows=1)


@dataclass
class Clock:
    """A wall clock that is hours away from where it just was, whenever it is looked at.

    Attributes:
        shown: what it showed so far.
    """

    hours: Iterator[int] = field(default_factory=lambda: cycle([0, 7, -5, 30, -2]))
    shown: list[float] = field(default_factory=list)
    begin: float = field(default_factory=time.time)

    def __call__(self) -> float:
        self.shown.append(self.begin + 3600 * next(self.hours))
        return self.shown[-1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of everything that asks for the time of day in this process."""
    made = Clock()

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(made(), tz)

    monkeypatch.setattr(time, "time", made)
    monkeypatch.setattr(time, "time_ns", lambda: int(made() * 1e9))
    monkeypatch.setattr("tqdm.std.time", made)
    monkeypatch.setattr("mechheads.ledger.ledger.datetime", Jumping)
    return made


def test_a_clock_that_jumps_stops_no_worker_and_changes_no_bit(small, tmp_path: Path, clock: Clock) -> None:
    """A half of the sweep is computed first; then it goes on from its ledger."""
    store, workers = tmp_path / "sweep.ledger", MadeWorkers(2)
    for part in ((1, 2), None):
        limits = replace(EVERY_UNIT, part=part)
        ours = mh.ablate(small, CLEAN, budget=limits, workers=workers, store=store)
    assert workers.stopped == []
    assert len(workers.computed) == 12
    assert len({unit for units in workers.computed for unit in units}) == 12, "none was computed twice"
    workers.stop()
    alone = mh.ablate(small, CLEAN, budget=EVERY_UNIT)
    assert ours.scores.values.tobytes() == alone.scores.values.tobytes() and ours.dataset.identical(alone.dataset)
    assert max(clock.shown) - min(clock.shown) >= 7 * 3600, "it was looked at, and it jumped"
    assert [sweep["units"] for sweep in Ledger.list(store)] == [12]


def test_sweeps_are_listed_in_the_order_in_which_they_began_whatever_the_clock_said(
    small, tmp_path: Path, clock: Clock
):
    clock.hours = count(0, -1)
    store, keys = tmp_path / "sweeps.ledger", []
    for kind in ("zero", "mean", "uniform"):
        mh.ablate(small, CLEAN, intervention=kind, heads=["L0H0"], store=store)
        keys += [sweep["key"] for sweep in Ledger.list(store) if sweep["key"] not in keys]
    mh.scale.merge([store], tmp_path / "merged.ledger")
    for ledger in (store, tmp_path / "merged.ledger"):
        listed = Ledger.list(ledger)
        assert [sweep["key"] for sweep in listed] == keys
        stamps = [sweep["started"] for sweep in listed]
        assert stamps == sorted(set(stamps), reverse=True), "by the clock, the last one began first"
