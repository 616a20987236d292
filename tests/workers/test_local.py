"""Workers in processes of this machine, as far as no process is needed; tests/slow starts them."""

from __future__ import annotations

import pytest
import torch

import mechheads as mh
from mechheads.workers.replica import Replica


def test_the_number_of_threads_is_divided():
    assert mh.scale.Local(2)._threads == max(1, torch.get_num_threads() // 2)


def test_workers_take_the_devices_in_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    replica = Replica(3, "", 1)
    assert (replica._turn("cuda"), replica._turn("cpu")) == ("cuda:1", "cpu")
    assert mh.scale.Local(3, ["cuda:1", "cpu"])._device(2) == "cuda:1"


@pytest.mark.parametrize(
    ("given", "message"),
    [((0,), "n is 0; it must be at least 1"), ((2, []), "devices is"), ((2, "cuda:0"), "devices is 'cuda:0'; give a")],
)
def test_bad_numbers_and_devices_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        mh.scale.Local(*given)
