"""Work in stages: timed, told, and ended early without losing what is done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import mechheads as mh
import mechheads.studies.study
from mechheads.studies.study import Stages, stop_if_partial


@dataclass
class Work(Stages):
    found: int = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time it is; a test moves it on."""
    now = [100.0]
    monkeypatch.setattr(mechheads.studies.study.time, "perf_counter", lambda: now[0])
    return now


def test_stages_are_timed_and_told(clock: list[float], capsys: pytest.CaptureFixture):
    work = Work(3)
    assert (work.found, work.seconds, work.notes, work.interrupted, work.times) == (3, {}, [], False, "")
    with work.stage("looking", True):
        clock[0] += 4.2
    with work.stage("thinking", False):
        clock[0] += 190
    assert work.seconds == pytest.approx({"looking": 4.2, "thinking": 190})
    assert work.times == "looking 4.2 s, thinking 3 min 10 s"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "looking ...\n")


def test_ctrl_c_ends_the_block_and_is_noted(clock: list[float]):
    work = Work()
    with work.interruptible():
        work.found = 1
        with work.stage("long", False):
            clock[0] += 2
            raise KeyboardInterrupt
    assert (work.found, work.interrupted, work.seconds) == (1, True, {"long": 2.0})
    assert work.notes == ["interrupted: these are the results until then; heads that were not reached are NaN"]
    with pytest.raises(RuntimeError), work.interruptible():
        raise RuntimeError
    assert len(work.notes) == 1


def test_a_stage_that_a_model_cannot_be_asked_for_is_left_out():
    work = Work()
    with work.or_left_out("letters"):
        raise ValueError("there are none")
    assert work.notes == ["letters left out: there are none"]
    assert not work.interrupted
    for error in (KeyboardInterrupt, TypeError):
        with pytest.raises(error), work.or_left_out("letters"):
            raise error


def test_two_works_share_nothing():
    one, other = Work(), Work()
    one.notes.append("x")
    one.seconds["x"] = 1.0
    assert (other.notes, other.seconds) == ([], {})


def test_what_was_interrupted_inside_ends_the_work():
    def scores(last: float) -> mh.HeadScores:
        return mh.HeadScores.from_scores(np.array([[1.0, last]]), name="demo", unit="", kind="demo")

    stop_if_partial(scores(0.0))
    with pytest.raises(KeyboardInterrupt):
        stop_if_partial(scores(np.nan))
    with pytest.raises(KeyboardInterrupt):
        stop_if_partial(scores(0.0).with_provenance(interrupted=True))
