"""Progress bars."""

from __future__ import annotations

import io
import sys
import types
from itertools import count

import pytest

import mechheads as mh
from mechheads import progress
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


def test_a_bar_in_a_notebook_is_an_output_that_is_empty_once_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Display(types.ModuleType):
        def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Display:
            self.update(bundle, raw=raw)
            return self

        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            shown.append(bundle["text/html"])

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython.display", Display("IPython.display"))
    with mh.settings(progress=True), progress.Bar(total=2, desc="a <b>", mininterval=0) as bar:
        bar.update()
        bar.update()
    assert shown[0].startswith("<pre>a &lt;b&gt;:   0%") and "100%" in shown[-2] and shown[-1] == ""
