"""A model is one thread's at a time, and what an analysis changed is undone when it ends."""

from __future__ import annotations

import pytest

from mechheads.model.changes import Changes
from support.threads import in_a_thread


class Switch:
    """A change that is on or off."""

    def __init__(self) -> None:
        self.on = False

    def make(self) -> None:
        self.on = True

    def undo(self) -> None:
        self.on = False


def test_a_second_thread_is_refused_while_the_first_has_the_model() -> None:
    changes, switch = Changes(), Switch()

    def elsewhere() -> object:
        assert changes.mine and switch.on
        return in_a_thread(lambda: changes.alone(lambda: 1))

    said = changes.during([switch], elsewhere)
    assert isinstance(said, RuntimeError) and "another thread is running an analysis on it" in str(said)
    assert not switch.on and not changes.mine
    assert in_a_thread(lambda: changes.alone(lambda: 1)) == 1


def test_inside_an_analysis_changes_are_undone_one_call_at_a_time() -> None:
    changes, outer, inner = Changes(), Switch(), Switch()

    def states() -> list[tuple[bool, bool]]:
        return [changes.during([inner], lambda: (outer.on, inner.on)), (outer.on, inner.on)]

    assert changes.during([outer], states) == [(True, True), (True, False)]
    with pytest.raises(ZeroDivisionError):
        changes.during([outer], lambda: 1 / 0)
    assert not outer.on and not changes.any_made
