"""Limits and settings: what ``budget=`` stands for, and where settings hold."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.limits import Limits, Settings, budget_bytes, current
from support.made_workers import MadeWorkers


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (None, 4 * 2**30),
        (1000, 1000),
        ("1000", 1000),
        ("2 GB", 2**31),
        ("1.5 kb", 1536),
        (" 3MB ", 3 * 2**20),
        ("1 TB", 2**40),
    ],
)
def test_limits_of_a_budget_are_its_bytes_and_the_usual_pieces(budget, size):
    with mh.settings(budget=budget):
        assert current().limits == Limits(memory=size)
    assert budget_bytes(budget) == size


@pytest.mark.parametrize("budget", [0, -5, 0.5, "0 GB", "-1 GB", "much", "2 XB", "", "1.2.3 GB", math.nan, math.inf])
def test_a_budget_that_makes_no_sense_is_refused(budget):
    for read in (lambda given: mh.settings(budget=given), budget_bytes):
        with pytest.raises(ValueError, match='give a number of bytes or a text such as "2 GB"'):
            read(budget)


def test_settings_hold_in_their_block_and_what_is_left_out_stays(tmp_path: Path):
    before, workers = current(), MadeWorkers(2)
    with mh.settings(budget="1 MB", seed=3):
        with mh.settings(workers=workers, store=tmp_path / "ledger", progress=True):
            limits = Limits(memory=2**20, workers=workers)
            assert current() == Settings(limits, seed=3, progress=True, store=tmp_path / "ledger")
            with mh.settings(budget=Limits(tokens=5)):
                assert current().limits == Limits(tokens=5, workers=workers)
            with mh.settings(workers=0):
                assert current().limits.workers is None
        assert current().seed == 3 and current().store is None
    assert current() == before


def test_settings_are_undone_after_an_error_and_may_be_used_again():
    before, other = current(), mh.settings(seed=5)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), other:
            1 / (current().seed - 5)
        assert current() == before
    assert other(lambda: current().seed)() == 5
    assert current() == before


def test_settings_of_one_thread_are_not_those_of_another():
    found: list[int] = []
    with mh.settings(seed=7):
        thread = threading.Thread(target=lambda: found.append(current().seed))
        thread.start()
        thread.join()
    assert found == [0]


def test_a_call_may_have_settings_of_its_own(llama: mh.Model):
    prompts = ["The capital of France is", "The store is big", "Once upon a time"]
    with mh.settings(seed=4):
        effect = mh.ablate(llama, prompts, intervention="resample", heads="L1H1")
        other = mh.ablate(llama, prompts, intervention="resample", heads="L1H1", seed=2)
    assert (effect.provenance["seed"], other.provenance["seed"]) == (4, 2)
    assert mh.settings(seed=2)(mh.ablate)(llama, prompts, intervention="resample", heads="L1H1").dataset.identical(
        other.dataset
    )
