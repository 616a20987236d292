"""Workers in processes of this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.workers.messages import Answer, Lost
from mechheads.workers.replica import Replica
from support.levels import few
from support.made_ray import needs_ray
from support.texts import CLEAN, PAIRS

pytestmark = pytest.mark.slow

QUIET: dict[str, Any] = {"progress": False}
EVERY_UNIT = Limits(tokens=1, logit_rows=1)
PLACES = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


@pytest.fixture(scope="module")
def two():
    with mh.scale.Local(2) as workers:
        yield workers


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


def test_two_processes_give_the_bits_of_one(small, two, tmp_path: Path):
    store = tmp_path / "ledger"
    ours = mh.activation_patch(small, PAIRS, site="k", budget=EVERY_UNIT, workers=two, store=store, **QUIET)
    alone = mh.activation_patch(small, PAIRS, site="k", budget=EVERY_UNIT, **QUIET)
    assert same(ours, alone)
    assert same(mh.activation_patch(small, PAIRS, site="k", budget=EVERY_UNIT, store=store, **QUIET), alone)


@pytest.mark.parametrize("n", few([1, 2, 3], 2))
def test_any_number_of_processes_gives_the_numbers_of_one(small, n: int):
    with mh.scale.Local(n) as workers:
        for budget, off in ((EVERY_UNIT, 0.0), (None, 1e-6)):
            for analysis in (mh.ablate, mh.ships):
                ours, alone = (analysis(small, CLEAN, budget=budget, workers=some, **QUIET) for some in (workers, None))
                assert np.abs(ours.values.values - alone.values.values).max() <= off
        assert len(workers.pids) == n


@pytest.mark.release
def test_a_worker_with_another_release_of_a_library_is_refused(small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "own = metadata.version\n"
        "metadata.version = lambda name: '9.9' if name.replace('_', '-') == 'transformer-lens' else own(name)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with mh.scale.Local(1) as workers, pytest.raises(ValueError, match="or the worker has other files or other librar"):
        mh.ablate(small, CLEAN, workers=workers, **QUIET)


def test_processes_stay_for_the_next_analysis(small, two):
    mh.ablate(small, CLEAN, workers=two, **QUIET)
    before = two.pids
    ours = mh.ships(small, CLEAN, workers=two, **QUIET)
    assert two.pids == before
    np.testing.assert_allclose(ours.scores, mh.ships(small, CLEAN, **QUIET).scores, rtol=1e-5, atol=1e-6)


def test_all_kinds_of_units_are_computed_in_processes(small, two):
    """Heads beside ablated ones, windows of text, and seeds of gates."""
    group: dict[str, Any] = {"score": "ships", "draws": 0, "budget": EVERY_UNIT, **QUIET}
    found = mh.safety.sahara(small, CLEAN, 2, ablation="mean", workers=two, **group)
    assert same(found.trace, mh.safety.sahara(small, CLEAN, 2, ablation="mean", **group).trace)
    read: dict[str, Any] = {"window": 16, "n_tokens": 3000, **QUIET}
    profile = mh.profile_heads(small, workers=two, **read)
    assert profile.dataset.identical(mh.profile_heads(small, **read).dataset)
    task = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
    gates = mh.fit_gates(small, task, seeds=2, updates=2, workers=two, **QUIET)
    alone = mh.fit_gates(small, task, seeds=[1], updates=2, **QUIET)
    np.testing.assert_allclose(gates["drop"][1], alone["drop"][0], rtol=1e-6)


def test_functions_that_no_file_defines_travel(small, two):
    factor = 0.5

    def half(z, context):
        print("this must not get between the answers")
        return z * factor

    last = mh.metric(unit="nats")(lambda logits, context: logits[:, -1, 3])
    ours = mh.sweep(small, CLEAN, intervention=half, metric=last, workers=two, **QUIET)
    alone = mh.sweep(small, CLEAN, intervention=half, metric=last, **QUIET)
    np.testing.assert_allclose(ours.values, alone.values, rtol=1e-5, atol=1e-6)


def test_an_error_on_a_worker_that_only_it_knows_becomes_a_runtime_error(small, two):
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("not to be pickled")

    def odd(z, context):
        if context.head == mh.HeadId(2, 2):
            raise Odd("what is this")
        return z * 0

    with pytest.raises(RuntimeError, match="Odd: what is this"):
        mh.sweep(small, CLEAN, intervention=odd, workers=two, **QUIET)


def test_a_killed_process_is_an_answer_that_says_how_it_ended():
    with mh.scale.Local(1) as workers:
        workers.submit(0, "nonsense")
        ((replica, answer),) = waited(workers)
        assert replica == 0 and isinstance(answer, Answer) and isinstance(answer.error, AttributeError)
        workers.submit(0, "more nonsense")
        os.kill(workers.pids[0], signal.SIGKILL)
        found = waited(workers)
        while not isinstance(found[-1][1], Lost):
            found = waited(workers)
        assert found[-1][1].why.startswith("it was killed by signal 9")
        assert workers.pids == {}


def waited(workers: mh.scale.Local) -> list[tuple[int, Answer | Lost]]:
    found: list[tuple[int, Answer | Lost]] = []
    while not found:
        found = workers.collect(60)
    return found


def test_the_number_of_threads_is_divided(two):
    import torch

    assert two._threads == max(1, torch.get_num_threads() // 2)


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


@pytest.mark.release
def test_25_random_kills_change_nothing_and_compute_nothing_twice(small, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("mechheads.engine.dispatch._LIVES", 26)  # three kills may hit one unit by chance
    log = tmp_path / "log"
    log.touch()

    def noting(z, context):
        time.sleep(0.05)
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return z * 0.5

    def sweep(**more: Any) -> mh.HeadScores:
        given: dict[str, Any] = {"intervention": noting, "positions": "each", "budget": EVERY_UNIT, **QUIET}
        return mh.sweep(small, PLACES, **given, **more)

    alone = sweep()
    n, draw, killed, over = len(log.read_text().split()), random.Random(1), [0], threading.Event()
    with mh.scale.Local(3) as workers:

        def kill() -> None:
            while killed[0] < 25 and not over.wait(draw.uniform(0, 1)):
                before = len(log.read_text().split())
                while len(recent := log.read_text().split()[before:]) < 5 and not over.wait(0.01):
                    pass  # until a few more units were computed
                if pids := sorted(set(map(int, recent)) & set(workers.pids.values())):
                    killed[0] += 1
                    os.kill(draw.choice(pids), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            while killed[0] < 25:
                before, computed = killed[0], len(log.read_text().split())
                assert same(sweep(workers=workers), alone)
                lost = killed[0] - before + 1  # one more if it was killed just before
                assert n <= len(log.read_text().split()) - computed <= n + lost
        finally:
            over.set()
            killer.join()
    assert killed[0] == 25


DRIVER = """
import json, os, signal, sys, time
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


class Noting(KIND):
    def submit(self, replica, request):
        if isinstance(request, Request):
            note("sent", [f"{head} {place}" for head, place in request.batch.units])
        super().submit(replica, request)


def finding(self):
    note("found", found := find(self))
    return found


def committing(self, units):
    commit(self, units)
    note("committed", units)


def half(z, context):
    time.sleep(0.03)
    return z * 0.5


def sweep():
    given = dict(intervention=half, positions="each", budget=Limits(tokens=1, logit_rows=1), progress=False)
    with Noting(**GIVEN) as workers:
        return mh.sweep(model, PROMPTS, workers=workers, store=f"{folder}/ledger", **given)


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
@pytest.mark.parametrize(
    ("kind", "given"),
    [("mh.scale.Local", {"n": 2}), pytest.param("mh.scale.Ray", {"replicas": 2}, marks=needs_ray)],
)
def test_a_driver_killed_at_10_random_moments_goes_on_from_its_ledger_and_sends_nothing_twice(
    small, tiny, tmp_path: Path, kind, given
):
    draw = random.Random(2)
    wanted = [max(0, draw.randrange(-6, 18)) for _ in range(10)]
    moments = [(lines, draw.uniform(0, 0.1 if lines else 3)) for lines in wanted]  # lines of the log, seconds
    code = f"import mechheads as mh\nPROMPTS, KIND, GIVEN = {PLACES}, {kind}, {given}\n{DRIVER}"
    subprocess.run([sys.executable, "-c", code, tmp_path, tiny("llama"), json.dumps(moments)], check=True)

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
        if what == "sent":
            assert not safe.intersection(names), "sent to a worker after it was committed"
        else:
            safe.update(names)
    assert len(safe) == alone.values.notnull().sum()
    assert len(set(found)) >= 5, "killed before anything was done"
    assert found[-1] < len(safe), "never killed on its way"


def finished(store: Path) -> int:
    return sum(sweep["units"] for sweep in Ledger.list(store))


def test_processes_end_with_their_driver(tiny, tmp_path: Path):
    code = """
import os, signal, sys
import mechheads as mh
workers = mh.scale.Local(2)
model = mh.load(sys.argv[1])
mh.ablate(model, [" The capital of France is"], workers=workers, progress=False)
print(*workers.pids.values(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tiny("llama"))], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    given_up = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < given_up:
        time.sleep(0.05)
    assert not any(map(alive, pids))


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tiny, tmp_path: Path, presses: int):
    code = """
import signal, sys, time
import mechheads as mh
from mechheads.limits import Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if the tests run in the background
prompts = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]

def half(z, context):
    time.sleep(0.5)
    return z * 0.5

workers = mh.scale.Local(2)
model = mh.load(sys.argv[1])
mh.ablate(model, prompts, workers=workers, progress=False)
print(*workers.pids.values(), flush=True)
given = dict(intervention=half, positions="each", budget=Limits(tokens=1, logit_rows=1), progress=False)
found = mh.sweep(model, prompts, workers=workers, store=sys.argv[2], **given)
assert found.provenance["interrupted"] and found.missing, "all of it was computed"
"""
    words = [sys.executable, "-c", code, *map(str, (tiny("llama"), store := tmp_path / "ledger"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        while not store.exists() or finished(store) < 3:
            assert driver.poll() is None
            time.sleep(0.05)
        for _ in range(presses):
            os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
            time.sleep(0.1)
        assert driver.wait() == 0
    assert len(pids) == 2 and not any(map(alive, pids))
    assert finished(store) >= 3


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
