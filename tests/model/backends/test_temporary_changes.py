"""A model is one thread's at a time: who has it, and what the end of a reservation may undo."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from mechheads.model.backends.temporary_changes import Changes, Reservation


class Switch:
    """A change that is on or off."""

    def __init__(self) -> None:
        self.on = False

    def make(self) -> None:
        self.on = True

    def undo(self) -> None:
        self.on = False


def in_a_thread(run) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_ending_a_turn_again_leaves_the_changes_of_the_next_one():
    changes, switch, seen = Changes(), Switch(), []

    def first() -> Reservation | None:
        return changes.begin(sys._getframe())

    def other() -> None:
        reservation = changes.begin(sys._getframe())
        assert reservation is not None
        changes.during([switch], lambda: (changes.end(ended), seen.append(switch.on)))
        changes.end(reservation)

    ended = first()
    assert ended is not None
    changes.end(ended)
    in_a_thread(other)
    assert seen == [True] and not switch.on


def test_a_generator_that_leaves_the_stack_does_not_end_its_callers_turn(monkeypatch: pytest.MonkeyPatch):
    true_frames = sys._current_frames
    suspended = []

    def steps() -> Iterator[int]:
        yield 1

    def frames() -> dict[int, FrameType]:
        """At the first look the thread is in a generator, which yields before the look is over."""
        found = true_frames()
        if not suspended:
            suspended.append(steps())
            next(suspended[0])
            found[here] = suspended[0].gi_frame
        return found

    here = threading.get_ident()
    reservation = Reservation(sys._getframe())
    monkeypatch.setattr(sys, "_current_frames", frames)
    assert not reservation.over and suspended
    assert Reservation(suspended[0].gi_frame).over
