"""Ctrl-C ends a block and nothing else; what was done is told."""

from __future__ import annotations

import warnings

import pytest

from mechheads.messages.notices import interrupted_after, until_interrupted


class Stop(KeyboardInterrupt):
    """An exception of one's own that stands for Ctrl-C."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stop])
def test_until_interrupted_goes_on_after_ctrl_c_and_remembers_it_over_further_blocks(kind: type[BaseException]) -> None:
    done = []
    with until_interrupted() as work:
        for i in range(3):
            if i == 2:
                raise kind
            done.append(i)
    assert work.interrupted and done == [0, 1]
    with work:
        pass
    assert work.interrupted


def test_until_interrupted_warns_and_stops_the_caller_only_if_interrupted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with until_interrupted() as work:
            pass
        work.warn("3 of 3 heads")
        work.stop_unless([])
    with work:
        raise KeyboardInterrupt
    with pytest.warns(UserWarning, match=r"^interrupted after 1 of 3 heads; the rest are NaN$"):
        work.warn("1 of 3 heads")
    with pytest.warns(UserWarning, match=r"^interrupted after 1 trial; it may be possible to remove more$"):
        work.warn("1 trial", "it may be possible to remove more")
    assert interrupted_after("2 updates") == "interrupted after 2 updates"
    work.stop_unless(1)
    with pytest.raises(KeyboardInterrupt):
        work.stop_unless(0)
