"""Analyses whose units are computed by workers, with every trouble that workers can have."""

from __future__ import annotations

import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
import mechheads.engine.dispatch
import mechheads.engine.work
from mechheads.limits import Limits
from mechheads.model.load import load_again
from support.made_workers import MadeWorkers, pressing
from support.texts import CLEAN, PAIRS

EVERY_UNIT = Limits(tokens=1, logit_rows=1)
"""Every unit is a batch of its own, with workers and without."""
TASK = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
HEADS = ["L0H1", "L1H2", "L2H3"]

ANALYSES: dict[str, Callable[..., Any]] = {
    "patching": lambda model, **given: mh.activation_patch(model, PAIRS, site="k", positions="each", **given).values,
    "paths": lambda model, **given: mh.path_patch(model, PAIRS, **given).values,
    "given": lambda model, **given: mh.ablate(model, CLEAN, given={"L0H1": "mean"}, heads=HEADS, **given).values,
    "sets of heads": lambda model, **given: mh.patching.patch_sets(model, PAIRS, [HEADS, HEADS[:2]], **given).values,
    "faithfulness": lambda model, **given: mh.patching.faithfulness(model, PAIRS, HEADS, **given).score,
    "tasks": lambda model, **given: mh.gating.ablation_effects(model, TASK, heads=HEADS, **given).values,
}
"""Analyses that have no store, and two that give workers other batches; tests/ledger has the others."""


@pytest.fixture(scope="module", autouse=True)
def one_copy() -> Iterator[None]:
    """The workers of this file share one copy of each model: they compute one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechheads.scale.ray_cluster.load_again", cache(load_again))
        yield


def ablate(model: mh.Model, **given: Any) -> mh.HeadScores:
    """12 units, each a batch of its own."""
    return mh.ablate(model, CLEAN[:2], **{"budget": EVERY_UNIT} | given)


@pytest.fixture(scope="module")
def alone(small) -> mh.HeadScores:
    return ablate(small)


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    """Whether two results are the same to the bit, whatever they were computed by."""
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


@pytest.fixture(scope="module")
def two() -> MadeWorkers:
    return MadeWorkers(2)


@pytest.mark.parametrize("name", ANALYSES)
def test_workers_give_the_numbers_of_one_process(small, two, name):
    before = len(two.computed)
    ours = ANALYSES[name](small, workers=two)
    assert len(two.computed) > before
    np.testing.assert_allclose(ours, ANALYSES[name](small), rtol=1e-5, atol=1e-5)


def units(model: mh.Model) -> set[tuple[mh.HeadId, int]]:
    return {(mh.HeadId(layer, head), 0) for layer in range(model.n_layers) for head in range(model.n_heads)}


def test_lost_workers_change_nothing_and_no_committed_unit_is_computed_twice(small, alone, tmp_path: Path):
    draw, times = random.Random(3), Counter[Any]()

    def trouble(replica: int, batch: Any) -> bool:
        times[batch] += (lost := draw.random() < 0.4 and times[batch] < 2)  # a third one is the last
        return lost

    workers = MadeWorkers(3, trouble)
    store = tmp_path / "ledger"
    ours = ablate(small, workers=workers, store=store)
    assert len(workers.lost) >= 5
    assert same(ours, alone)
    assert Counter(unit for batch in workers.computed for unit in batch) == dict.fromkeys(units(small), 1)
    ablate(small, workers=workers, store=store)
    assert sum(map(len, workers.computed)) == len(units(small))  # everything was in the ledger


def test_what_ends_its_worker_three_times_is_named_and_the_rest_is_kept(small, alone, tmp_path: Path):
    bad = (mh.HeadId(1, 2), 0)
    workers, store = MadeWorkers(2, lambda replica, batch: bad in batch.units), tmp_path / "ledger"
    with pytest.warns(
        UserWarning, match="L1H2, place 0 ended a worker 3 times, so it has no value; the last time, Ray"
    ):
        ours = ablate(small, workers=workers, store=store)
    assert ours.missing == (mh.HeadId(1, 2),)
    assert workers.lost == [[bad]] * 3
    assert Counter(unit for batch in workers.computed for unit in batch) == dict.fromkeys(units(small) - {bad}, 1)
    assert same(ablate(small, store=store), alone)  # the same call tries it again


def test_workers_that_compute_nothing_are_one_error_with_the_last_words(small):
    unready, deadly = MadeWorkers(2), MadeWorkers(2, lambda replica, batch: True)
    unready.unready = {0, 1}
    for workers in (unready, deadly):
        with pytest.raises(
            RuntimeError, match=r"workers: none of them could compute anything; the last time, Ray said:"
        ):
            ablate(small, workers=workers)


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_once_finishes_the_units_in_flight(small, alone, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    workers, seen = pressing(1, at=4)
    usual = signal.getsignal(signal.SIGINT)
    with pytest.warns(UserWarning, match="interrupted after 5 of 12 units; the rest are NaN"):
        ours = ablate(small, workers=workers, store=tmp_path / "l")
    assert len(workers.computed) == len(seen) == 5  # the fourth, and one that another worker had
    assert len(ours.missing) == 7 and ours.provenance["interrupted"]
    assert "finishing the units in flight; press Ctrl-C again to stop now" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is usual
    assert not workers.stopped
    assert same(ablate(small, workers=workers, store=tmp_path / "l"), alone)
    assert len(workers.computed) == 12


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_twice_stops_now_and_keeps_what_is_committed(small, alone, tmp_path: Path):
    workers, _ = pressing(2, at=4)
    with pytest.warns(UserWarning, match="interrupted after 3 of 12 units; the rest are NaN"):
        ours = ablate(small, workers=workers, store=tmp_path / "l")
    assert len(ours.missing) == 9
    assert workers.stopped  # what they were doing must not be taken for an answer later
    assert same(ablate(small, store=tmp_path / "l"), alone)


def test_a_model_that_was_changed_after_loading_is_refused(tiny):
    changed = mh.load(tiny("gpt2"))
    changed.W_U.data.mul_(1.5)
    with pytest.raises(ValueError, match="gives other log-probabilities on a worker than in this process"):
        mh.ablate(changed, CLEAN, workers=MadeWorkers(1))


@pytest.mark.parametrize("asked", [-1, "two", "ray://there"])
def test_workers_that_are_none_are_refused(small, asked):
    with pytest.raises(
        ValueError, match=r"workers is .*; give a number of workers on this machine, such as 2, the addr"
    ):
        mh.ablate(small, CLEAN, workers=asked)


def test_without_ray_the_error_says_what_to_install_before_the_model_runs(small, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(small.backend, "run", None)
    for asked in (2, "auto"):
        with pytest.raises(ImportError, match=r'workers need ray: pip install "mechheads\[ray\]"; or leave'):
            mh.ablate(small, CLEAN, workers=asked)
    with pytest.raises(ImportError, match="workers need ray"):
        Limits(workers=2)
    with pytest.raises(ImportError, match="workers need ray"):
        mh.scale.Ray(replicas=2)


def test_an_error_on_a_worker_is_raised_here_with_its_trace(small):
    def breaking(z, context):
        if context.head == mh.HeadId(1, 1):
            raise LookupError("no such thing")
        return z * 0

    with pytest.raises(LookupError, match="no such thing") as caught:
        mh.sweep(small, CLEAN[:1], intervention=breaking, budget=EVERY_UNIT, workers=MadeWorkers(2))
    (note,) = caught.value.__notes__
    assert note.startswith("On worker ") and "in breaking" in note
