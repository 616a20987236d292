"""Workers of a real Ray: the same numbers as without, whatever is killed or interrupted, and none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.engine.work import UnitRuns
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from support.texts import CLEAN, PAIRS

EVERY_UNIT = Limits(tokens=1, logit_rows=1)
PLACES = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]


@pytest.fixture(scope="module")
def two() -> Iterator[mh.scale.Ray]:
    with mh.scale.Ray(replicas=2) as workers:
        yield workers


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


def finished(store: Path) -> int:
    return sum(sweep["units"] for sweep in Ledger.list(store)) if store.exists() else 0


def test_workers_give_the_bits_of_one_process(small, two, tmp_path: Path):
    store, handler = tmp_path / "ledger", signal.getsignal(signal.SIGTERM)
    given: dict[str, Any] = {"site": "k", "budget": EVERY_UNIT}
    ours = mh.activation_patch(small, PAIRS, workers=two, store=store, **given)
    alone = mh.activation_patch(small, PAIRS, **given)
    assert same(ours, alone)
    assert same(mh.activation_patch(small, PAIRS, store=store, **given), alone)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_all_kinds_of_units_are_computed_by_workers(small, two):
    """Heads beside ablated ones, windows of text, and seeds of gates."""
    group: dict[str, Any] = {"score": "ships", "draws": 0}
    found = mh.settings(workers=two, budget=EVERY_UNIT)(mh.safety.sahara)(small, CLEAN, 2, intervention="mean", **group)
    assert same(
        found.trace,
        mh.settings(budget=EVERY_UNIT)(mh.safety.sahara)(small, CLEAN, 2, intervention="mean", **group).trace,
    )
    read: dict[str, Any] = {"window": 16, "n_tokens": 1000}
    profile = mh.settings(workers=two)(mh.profile_heads)(small, **read)
    assert profile.dataset.identical(mh.profile_heads(small, **read).dataset)
    task = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
    gates = mh.settings(workers=two)(mh.fit_gates)(small, task, seeds=2, updates=2)
    alone = mh.fit_gates(small, task, seeds=[1], updates=2)
    np.testing.assert_allclose(gates["drop"][1], alone["drop"][0], rtol=1e-6)


class Odd(Exception):
    """An error that can be pickled and not read again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def test_functions_that_no_file_defines_travel_and_so_do_their_errors(small, two):
    factor, error = 0.5, None

    def half(z, context):
        if error is not None and context.head == mh.HeadId(2, 2):
            raise error
        return z * factor

    last = mh.metric(unit="nats")(lambda logits, context: logits[:, -1, 3])
    ours = mh.sweep(small, CLEAN, intervention=half, metric=last, workers=two)
    alone = mh.sweep(small, CLEAN, intervention=half, metric=last)
    np.testing.assert_allclose(ours.values, alone.values, rtol=1e-5, atol=1e-5)
    error = LookupError("no such thing")
    with pytest.raises(LookupError, match="no such thing") as caught:
        mh.sweep(small, CLEAN, intervention=half, metric=last, workers=two)
    assert "in half" in caught.value.__notes__[0]

    def odd(z, context):
        raise Odd("what ", "is this")

    with pytest.raises(Exception, match="what is this"):
        mh.sweep(small, CLEAN, intervention=odd, workers=two)


def test_a_killed_worker_is_replaced_and_only_its_unit_is_computed_again(small, two, tmp_path: Path):
    killed, log = tmp_path / "killed", tmp_path / "log"

    def half(z, context):
        with log.open("a") as file:
            file.write(f"{context.head}\n")
        if context.head == mh.HeadId(1, 1) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return z * 0.5

    ours = mh.sweep(small, CLEAN, intervention=half, budget=EVERY_UNIT, workers=two)
    every = [f"L{layer}H{head}" for layer in range(3) for head in range(4)]
    wanted, called = Counter([*every, "L1H1"]), Counter(log.read_text().split())
    assert called >= wanted
    assert (called - wanted).total() <= 2 * 3, "each of three processes proves one head of its first wave"
    assert same(ours, mh.sweep(small, CLEAN, intervention=half, budget=EVERY_UNIT))


DRIVER = """
import signal, sys, time
import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if the tests run in the background
commit = Ledger.commit


def slowly(self, units):
    time.sleep(0.1)
    return commit(self, units)


Ledger.commit = slowly
given = dict(intervention="zero", positions="each", budget=Limits(tokens=1, logit_rows=1))
found = mh.ablate(mh.load(sys.argv[1]), PLACES, workers=2, store=sys.argv[2], **given)
assert found.provenance["interrupted"] and found.missing, "all of it was computed"
"""


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["Ctrl-C", "killed"]
)
def test_ctrl_c_and_a_killed_driver_leave_no_worker_and_the_same_call_computes_the_rest(
    small, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int, code: int
):
    store = tmp_path / "ledger"
    script = DRIVER.replace("PLACES", repr(PLACES))
    with subprocess.Popen([sys.executable, "-c", script, tiny("llama"), store], start_new_session=True) as driver:
        while finished(store) < 3:
            assert driver.poll() is None
            time.sleep(0.05)
        workers = workers_of(driver.pid)
        os.killpg(driver.pid, sent)  # as a terminal does
        assert driver.wait() == code
    given_up = time.monotonic() + 30
    while workers_of(driver.pid) and time.monotonic() < given_up:
        time.sleep(0.05)
    assert 1 <= len(workers) <= 2 and not workers_of(driver.pid)

    def ablate(**given: Any) -> mh.HeadScores:
        return mh.ablate(small, PLACES, intervention="zero", positions="each", budget=EVERY_UNIT, **given)

    alone, done, carried = ablate(), finished(store), []
    run = UnitRuns.__call__
    monkeypatch.setattr(UnitRuns, "__call__", lambda *given: carried.append(given) or run(*given))
    assert same(ablate(store=store), alone)
    again = 2  # stored units that run once more, which proves the ledger
    assert 3 <= done == finished(store) - (len(carried) - again) < finished(store)


def workers_of(driver: int) -> set[int]:
    """The workers that run in the session of a driver."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if int(session) == driver and state != "Z" and b"ray::Replica" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found
