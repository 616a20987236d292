"""Workers in real processes: the same numbers as without, whatever is killed or interrupted, and none is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
import mechheads.engine.run
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from support.made_ray import needs_ray
from support.texts import CLEAN, PAIRS
from support.twins import run_at_once

QUIET: dict[str, Any] = {"progress": False}
EVERY_UNIT = Limits(tokens=1, logit_rows=1)
PLACES = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]
POOLS = ["mh.scale.Local(2)", pytest.param("mh.scale.Ray(replicas=2)", marks=needs_ray)]
WORKER = (b"mechheads.workers.process", b"ray::_Served")
"""What the command lines of workers have in them."""


@pytest.fixture(scope="module")
def small(loaded: Callable[[str], mh.Model]) -> mh.Model:
    return loaded("llama")


@pytest.fixture(scope="module", params=POOLS)
def two(request: pytest.FixtureRequest) -> Iterator[Any]:
    with eval(request.param) as workers:
        yield workers


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


def finished(store: Path) -> int:
    return sum(sweep["units"] for sweep in Ledger.list(store)) if store.exists() else 0


def test_two_processes_give_the_bits_of_one(small, two, tmp_path: Path):
    store, handler = tmp_path / "ledger", signal.getsignal(signal.SIGTERM)
    given: dict[str, Any] = {"site": "k", "budget": EVERY_UNIT, **QUIET}
    ours = mh.activation_patch(small, PAIRS, workers=two, store=store, **given)
    alone = mh.activation_patch(small, PAIRS, **given)
    assert same(ours, alone)
    assert same(mh.activation_patch(small, PAIRS, store=store, **given), alone)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_all_kinds_of_units_are_computed_in_processes(small, two):
    """Heads beside ablated ones, windows of text, and seeds of gates."""
    group: dict[str, Any] = {"score": "ships", "draws": 0, "budget": EVERY_UNIT, **QUIET}
    found = mh.safety.sahara(small, CLEAN, 2, ablation="mean", workers=two, **group)
    assert same(found.trace, mh.safety.sahara(small, CLEAN, 2, ablation="mean", **group).trace)
    read: dict[str, Any] = {"window": 16, "n_tokens": 1000, **QUIET}
    profile = mh.profile_heads(small, workers=two, **read)
    assert profile.dataset.identical(mh.profile_heads(small, **read).dataset)
    task = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
    gates = mh.fit_gates(small, task, seeds=2, updates=2, workers=two, **QUIET)
    alone = mh.fit_gates(small, task, seeds=[1], updates=2, **QUIET)
    np.testing.assert_allclose(gates["drop"][1], alone["drop"][0], rtol=1e-6)


def test_functions_that_no_file_defines_travel_and_so_do_their_errors(small, two):
    factor, bad = 0.5, None

    def half(z, context):
        print("this must not get between the answers")
        if context.head == bad:
            raise LookupError("no such thing")
        return z * factor

    last = mh.metric(unit="nats")(lambda logits, context: logits[:, -1, 3])
    ours = mh.sweep(small, CLEAN, intervention=half, metric=last, workers=two, **QUIET)
    alone = mh.sweep(small, CLEAN, intervention=half, metric=last, **QUIET)
    np.testing.assert_allclose(ours.values, alone.values, rtol=1e-5, atol=1e-6)
    bad = mh.HeadId(2, 2)
    with pytest.raises(LookupError, match="no such thing"):
        mh.sweep(small, CLEAN, intervention=half, metric=last, workers=two, **QUIET)


def test_a_killed_worker_is_replaced_and_only_its_unit_is_computed_again(small, two, tmp_path: Path):
    killed, log = tmp_path / "killed", tmp_path / "log"

    def half(z, context):
        with log.open("a") as file:
            file.write(f"{context.head}\n")
        if context.head == mh.HeadId(1, 1) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return z * 0.5

    ours = mh.sweep(small, CLEAN, intervention=half, budget=EVERY_UNIT, workers=two, **QUIET)
    every = [f"L{layer}H{head}" for layer in range(3) for head in range(4)]
    assert Counter(log.read_text().split()) == Counter([*every, "L1H1"])
    assert same(ours, mh.sweep(small, CLEAN, intervention=half, budget=EVERY_UNIT, **QUIET))


TWINS = """
import sys
import mechheads as mh
from mechheads.limits import Limits
model = mh.load(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
limits = Limits(tokens=int(sys.argv[3]), logit_rows=1)
found = mh.ablate(model, PLACES, kind="zero", positions="each", budget=limits, store=sys.argv[2], progress=False)
found.save(sys.argv[4])
"""


def test_two_processes_share_one_sweep_at_the_same_time(tiny, small, tmp_path: Path):
    """They are allowed batches of other sizes; both end with the numbers of the ledger, and nothing is there twice."""
    code, store = f"PLACES = {PLACES}\n{TWINS}", tmp_path / "store"
    outs = [tmp_path / "1.nc", tmp_path / "2.nc"]
    run_at_once(code, [(tiny("llama"), store, tokens, out) for tokens, out in zip((1, 60), outs, strict=True)])
    one, two = map(mh.HeadScores.load, outs)
    stored = mh.ablate(small, PLACES, kind="zero", positions="each", store=store, **QUIET)
    assert one.scores.values.tobytes() == two.scores.values.tobytes() == stored.scores.values.tobytes()
    np.testing.assert_allclose(
        one.scores, mh.ablate(small, PLACES, kind="zero", positions="each", **QUIET).scores, atol=1e-5
    )
    (sweep,) = Ledger.list(store)
    assert sweep["units"] == one.scores.values.size


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
given = dict(kind="zero", positions="each", budget=Limits(tokens=1, logit_rows=1), progress=False)
found = mh.ablate(mh.load(sys.argv[1]), PLACES, workers=POOL, store=sys.argv[2], **given)
assert found.provenance["interrupted"] and found.missing, "all of it was computed"
"""


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(
    ("sent", "presses", "code"),
    [
        (signal.SIGINT, 1, 0),
        pytest.param(signal.SIGINT, 2, 0, marks=pytest.mark.release),
        (signal.SIGKILL, 1, -signal.SIGKILL),
    ],
    ids=["Ctrl-C", "Ctrl-C twice", "killed"],
)
def test_ctrl_c_and_a_killed_driver_leave_no_worker_and_the_same_call_computes_the_rest(
    small, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: str, sent: int, presses: int, code: int
):
    store = tmp_path / "ledger"
    script = DRIVER.replace("PLACES", repr(PLACES)).replace("POOL", pool)
    with subprocess.Popen([sys.executable, "-c", script, tiny("llama"), store], start_new_session=True) as driver:
        while finished(store) < 3:
            assert driver.poll() is None
            time.sleep(0.05)
        workers = workers_of(driver.pid)
        for _ in range(presses):
            os.killpg(driver.pid, sent)  # as a terminal does
            time.sleep(0.1)
        assert driver.wait() == code
    given_up = time.monotonic() + 30
    while workers_of(driver.pid) and time.monotonic() < given_up:
        time.sleep(0.05)
    assert len(workers) == 2 and not workers_of(driver.pid)

    def ablate(**given: Any) -> mh.HeadScores:
        return mh.ablate(small, PLACES, kind="zero", positions="each", budget=EVERY_UNIT, **given, **QUIET)

    alone, done, carried = ablate(), finished(store), []
    carry = mechheads.engine.run.carry
    monkeypatch.setattr(mechheads.engine.run, "carry", lambda *given: carried.append(given) or carry(*given))
    assert same(ablate(store=store), alone)
    assert 3 <= done == finished(store) - len(carried) < finished(store)


def workers_of(driver: int) -> set[int]:
    """The workers that run in the session of a driver."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            words = (path / "cmdline").read_bytes()
            if int(session) == driver and state != "Z" and any(word in words for word in WORKER):
                found.add(int(path.name))
    return found


@pytest.mark.release
def test_25_random_kills_change_nothing_and_compute_nothing_twice(small, two, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("mechheads.engine.dispatch._LIVES", 26)  # three kills may hit one unit by chance
    (log := tmp_path / "log").touch()

    def noting(z, context):
        time.sleep(0.05)
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return z * 0.5

    def sweep(**more: Any) -> mh.HeadScores:
        return mh.sweep(small, PLACES, intervention=noting, positions="each", budget=EVERY_UNIT, **more, **QUIET)

    alone = sweep()
    n, draw, killed, over = len(log.read_text().split()), random.Random(1), list[int](), threading.Event()

    def kill() -> None:
        while len(killed) < 25 and not over.is_set():
            before = len(log.read_text().split())
            while len(recent := log.read_text().split()[before:]) < 8 and not over.wait(0.01):
                pass  # until a few more units were computed
            if pids := sorted(set(map(int, recent)) - set(killed)):
                killed.append(draw.choice(pids))
                os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    log.write_text("")
    killer.start()
    try:
        while len(killed) < 25:
            before, computed = len(killed), len(log.read_text().split())
            assert same(sweep(workers=two), alone)
            lost = len(killed) - before + 1  # one more if it was killed just before
            assert n <= len(log.read_text().split()) - computed <= n + lost
    finally:
        over.set()
        killer.join()
    assert len(killed) == 25


@pytest.mark.release
def test_a_unit_that_kills_its_workers_is_named_and_the_rest_is_kept(small, two):
    def deadly(z, context):
        if context.head == mh.HeadId(2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return z * 0.5

    said = "L2H1, place 0 ended 3 workers, so it has no value; the last time, (it was killed by signal 9|Ray said)"
    with pytest.warns(UserWarning, match=said):
        found = mh.sweep(small, CLEAN, intervention=deadly, budget=EVERY_UNIT, workers=two, **QUIET)
    assert found.missing == (mh.HeadId(2, 1),)


KILLED_OFTEN = """
import json, os, signal, sys, time
from contextlib import nullcontext
import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.workers.messages import Request

folder, model, moments = sys.argv[1], mh.load(sys.argv[2]), json.loads(sys.argv[3])
log = os.open(f"{folder}/log", os.O_RDWR | os.O_APPEND | os.O_CREAT)


def note(what, names):
    os.write(log, (",".join([what, *names]) + "\\n").encode())


def lines():
    with open(f"{folder}/log") as file:
        return file.read().count("\\n")


class Noting:
    def __init__(self, workers):
        self.workers, self.replicas, self.collect, self.stop = workers, workers.replicas, workers.collect, workers.stop

    def submit(self, replica, request):
        if isinstance(request, Request):
            note("sent", [f"{head} {place}" for head, place in request.batch.units])
        self.workers.submit(replica, request)


def finding(self):
    note("found", found := find(self))
    return found


def committing(self, units):
    kept = commit(self, units)
    note("committed", units)
    return kept


def half(z, context):
    time.sleep(0.03)
    return z * 0.5


def sweep():
    given = dict(intervention=half, positions="each", budget=Limits(tokens=1, logit_rows=1), progress=False)
    with POOL as workers:
        noting = workers and Noting(workers)
        return mh.sweep(model, PLACES, workers=noting, store=f"{folder}/ledger", **given)


find, commit = Ledger.finished, Ledger.commit
Ledger.finished, Ledger.commit = finding, committing
for wanted, seconds in moments:
    wanted += lines()
    if not (driver := os.fork()):
        sweep()
        signal.pause()
    while lines() < wanted:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(driver, signal.SIGKILL)
    _, status = os.waitpid(driver, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
sweep().save(f"{folder}/result.nc")
"""


@pytest.mark.release
@pytest.mark.parametrize("pool", ["nullcontext()", *POOLS])
def test_a_driver_killed_at_10_random_moments_goes_on_from_its_ledger_and_computes_nothing_twice(
    small, tiny, tmp_path: Path, pool: str
):
    draw = random.Random(2)
    wanted = [max(0, draw.randrange(-6, 18)) for _ in range(10)]
    start = 0.1 if pool == "nullcontext()" else 3  # how long workers may take to start, in seconds
    moments = [(lines, draw.uniform(0, 0.1 if lines else start)) for lines in wanted]  # lines of the log, seconds
    script = KILLED_OFTEN.replace("PLACES", repr(PLACES)).replace("POOL", pool)
    subprocess.run([sys.executable, "-c", script, tmp_path, tiny("llama"), json.dumps(moments)], check=True)

    def half(z, context):
        return z * 0.5

    alone = mh.sweep(small, PLACES, intervention=half, positions="each", budget=EVERY_UNIT, **QUIET)
    assert mh.HeadScores.load(tmp_path / "result.nc").values.values.tobytes() == alone.values.values.tobytes()
    safe: set[str] = set()
    found: list[int] = []
    for what, *names in (line.split(",") for line in (tmp_path / "log").read_text().splitlines()):
        if what == "found":
            assert safe <= set(names), "committed, and gone after the driver was killed"
            found.append(len(names))
        else:
            assert not safe.intersection(names), f"{what} after it was committed"
        if what != "sent":
            safe.update(names)
    assert len(safe) == alone.values.notnull().sum()
    assert len(set(found)) >= 5, "killed before anything was done"
    assert found[-1] < len(safe), "never killed on its way"
