"""Gates and profiles with a store: each call has a place of its own, and none is set back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.gating import FitSettings, Task, contrast_gates
from mechheads.gating.descent import State
from mechheads.ledger import ledger as stored_progress
from mechheads.ledger.ledger import Ledger, StoredProgress
from support.same import assert_same

ONE = Task([" The capital of France is", " no"], [" Paris", " yes"])
OTHER = Task([" The capital of Italy is", " no"], [" Rome", " cat"])
ROWS = [list(range(start, start + 40)) for start in (3, 50, 90)]
CALLS: dict[str, Callable[..., Any]] = {
    "gates": lambda model, **given: mh.fit_gates(model, **{"task": ONE, "seeds": 2, "updates": 2} | given),
    "contrast": lambda model, **given: contrast_gates(
        model, **{"retain": ONE, "forget": OTHER, "seeds": 2, "updates": 2} | given
    ),
    "profile": lambda model, **given: mh.profile_heads(model, **{"texts": ROWS, "window": 32} | given),
}
CHANGES: dict[str, list[dict[str, Any]]] = {
    "gates": [
        {"task": OTHER},
        {"seeds": [0, 3]},
        {"fit": FitSettings(lr=0.2)},
        {"batch": 1},
        {"batch": 1, "fit": FitSettings(order_seed=1)},
        {"fit": FitSettings(reduce="sum")},
        {"updates": 1},
    ],
    "contrast": [{"forget": Task(OTHER.prompts, ONE.targets)}, {"batch": 1}],
    "profile": [{"texts": ROWS[::-1]}, {"texts": ROWS[:2]}, {"texts": [*ROWS, *ROWS]}, {"window": 16}],
}


@pytest.mark.parametrize("name", CALLS)
def test_whatever_changes_the_numbers_is_other_work_and_nothing_is_stale(
    llama: mh.Model, tmp_path: Path, name: str
) -> None:
    call, path = CALLS[name], tmp_path / "store"
    stored = mh.settings(store=path)(call)
    changes = [{}, *CHANGES[name]]
    whole = [call(llama, **change) for change in changes]
    for _ in range(2):
        for change, expected in zip(changes, whole, strict=True):
            assert_same(stored(llama, **change), expected)
        assert len(Ledger.list(path)) == len(changes)


@pytest.mark.parametrize("name", ["gates", "profile"])
def test_a_file_that_is_no_ledger_is_refused(llama: mh.Model, tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt is not a ledger of mechheads .* and was not changed"):
        mh.settings(store=tmp_path / "notes.txt")(CALLS[name])(llama)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("notes.txt", "mine")]


def test_of_two_processes_at_the_same_work_the_state_that_is_furthest_stays(tmp_path: Path) -> None:
    begin = State.begin(torch.rand(2, 1, 3), 4)
    with Ledger(tmp_path / "store", "key", {}) as one, Ledger(tmp_path / "store", "key", {}) as two:
        for ledger, done, kept in ((one, 3, 3), (two, 2, 3), (two, 3, 3), (two, 5, 5), (one, 4, 5)):
            with StoredProgress(ledger) as progress:
                progress.see("fit", State.begin(begin.logits + done, 4), done)
            found = StoredProgress(one).state("fit", begin)
            assert torch.equal(found.logits, begin.logits + kept)
        assert StoredProgress(one).state("another fit", begin) is begin
        with pytest.raises(ValueError, match="unit 'a' is float32; a ledger stores float64"):
            one.commit({"a": np.ones(1, np.float32)}, moving=True)


def test_a_state_is_written_every_few_seconds_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, now = State.begin(torch.zeros(1, 1, 1), 4), [0.0]
    monkeypatch.setattr(stored_progress.time, "monotonic", lambda: now[0])
    with Ledger(tmp_path / "store", "key", {}) as ledger:
        written = []
        with suppress(ZeroDivisionError), StoredProgress(ledger) as progress:
            for done in range(1, 6):
                now[0] += 2
                progress.see("fit", begin, done)
                written.append([values[0] for values in ledger.finished().values()])
            raise ZeroDivisionError
        assert written == [[], [], [3], [3], [3]]
        assert ledger.finished()["fit"][0] == 5


def test_a_ledger_holds_every_number_of_a_state_to_the_bit(tmp_path: Path) -> None:
    begin = State.begin(torch.randn(2, 3, 4).clamp(-1, 1) / 3, 5)
    loss = torch.randn(2, 5)
    loss[1, 2:] = torch.nan
    state = State(begin.logits, begin.first, begin.second, 3, torch.tensor([0, 2**50]), loss, loss)
    with Ledger(tmp_path / "store", "key", {}) as ledger:
        with StoredProgress(ledger) as progress:
            progress.see("fit", state, 3)
        again = StoredProgress(ledger).state("fit", begin)
    assert again.done == 3 and isinstance(again.done, int)
    for name, value in vars(state).items():
        np.testing.assert_array_equal(getattr(again, name), value)
        assert not isinstance(value, torch.Tensor) or getattr(again, name).dtype == value.dtype
