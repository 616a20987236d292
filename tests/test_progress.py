"""Progress bars."""

from __future__ import annotations

import io
from itertools import count

import pytest

import mechheads as mh
from mechheads.progress import Bar


def test_a_bar_goes_by_a_clock_that_does_not_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    hours = (-3600 * looks for looks in count())
    monkeypatch.setattr("tqdm.std.time", lambda: next(hours))
    with mh.settings(progress=True), Bar(total=10, file=(shown := io.StringIO())) as bar:
        for done in range(1, 4):
            monkeypatch.setattr(bar, "last_print_t", bar.last_print_t - 1)  # a second has passed
            bar.update()
            assert f"{done}/10" in shown.getvalue()
        assert 0 <= bar.format_dict["elapsed"] < 600
