"""Workers on a Ray cluster: with a stand-in for Ray, and with Ray itself on this machine."""

from __future__ import annotations

import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.model.sources.source import Source
from mechheads.workers.messages import Request, Setup
from support.made_ray import MadeRay, needs_ray
from support.texts import CLEAN, PAIRS

QUIET: dict[str, Any] = {"progress": False}
EVERY_UNIT = Limits(tokens=1, logit_rows=1)
PLACES = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> MadeRay:
    ray = MadeRay({"CPU": 4, "GPU": 2})
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


def setup(device: str) -> Setup:
    return Setup("key", Source("nowhere"), device, b"")


def test_actors_give_the_bits_of_one_process(small, made: MadeRay, tmp_path: Path):
    given: dict[str, Any] = {"site": "k", "budget": EVERY_UNIT, "store": tmp_path / "ledger", **QUIET}
    with mh.scale.Ray(replicas=2) as workers:
        ours = mh.activation_patch(small, PAIRS, workers=workers, **given)
    alone = mh.activation_patch(small, PAIRS, **given | {"store": None})
    assert same(ours, alone)
    assert same(mh.activation_patch(small, PAIRS, **given), alone)
    assert (made.killed, made.address) == ([0, 1], "")


def test_a_cluster_of_this_machine_has_no_dashboard_no_statistics_and_ray_repeats_nothing(
    made: MadeRay, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    workers = mh.scale.Ray(replicas=2)
    assert (workers.replicas, made.started) == (2, [])
    workers.submit(0, setup("cpu"))
    assert made.started == [
        {
            "address": "local",
            "usage": "0",
            "log_to_driver": False,
            "logging_level": "warning",
            "num_cpus": 2,
            "include_dashboard": False,
        }
    ]
    assert made.options == [{"num_cpus": 1, "num_gpus": 0, "max_restarts": 0, "max_task_retries": 0}]
    assert made.given == [(0, "", workers._threads)]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1" and "PYTHONBREAKPOINT" not in os.environ


def test_a_cluster_that_is_there_is_joined_and_stays(made: MadeRay):
    with mh.scale.Ray("10.0.0.5:6379") as workers:
        workers.submit(0, setup("cpu"))
    with mh.scale.Ray() as workers:
        workers.submit(0, setup("cpu"))
    with mh.scale.Ray("auto") as workers:
        workers.submit(0, setup("cpu"))
    (started,) = made.started
    assert started["address"] == made.address == "10.0.0.5:6379" and "num_cpus" not in started
    assert made.killed == [0, 1, 2]
    with pytest.raises(ValueError, match=r"address is '10\.0\.0\.6:1', but this process is connected to the clu"):
        mh.scale.Ray("10.0.0.6:1").submit(0, setup("cpu"))


@pytest.mark.parametrize(
    ("asked", "device", "reserved"),
    [(None, "cpu", 0), (None, "mps", 0), (None, "cuda", 1), (0, "cpu", 0), (0.5, "cuda", 0.5), (2, "cuda", 2)],
)
def test_a_model_on_a_gpu_reserves_one_by_default(made: MadeRay, asked, device, reserved):
    mh.scale.Ray(gpus_per_replica=asked).submit(0, setup(device))
    assert [one["num_gpus"] for one in made.options] == [reserved]


def test_a_worker_starts_again_for_a_model_on_a_gpu(made: MadeRay):
    workers = mh.scale.Ray()
    for device in ("cpu", "cpu", "cuda"):
        workers.submit(0, setup(device))
    assert [one["num_gpus"] for one in made.options] == [0, 1]
    assert made.killed == [0]


def test_no_gpu_for_a_model_on_one_is_refused(made: MadeRay):
    with pytest.raises(ValueError, match="gpus_per_replica is 0, but the model of this analysis is on a GPU; give 1"):
        mh.scale.Ray(gpus_per_replica=0).submit(0, setup("cuda"))


def test_too_few_gpus_are_an_error_on_this_machine_and_a_warning_on_a_cluster_that_may_grow(made: MadeRay):
    few = "the Ray cluster has 2 GPUs, which is too few for 3 workers with 1 each"
    with pytest.raises(ValueError, match=f"{few}; give fewer replicas, or another gpus_per_replica"):
        mh.scale.Ray(replicas=3).submit(0, setup("cuda"))
    with pytest.warns(UserWarning, match=f"{few}; the others start when it has more"):
        mh.scale.Ray("auto", replicas=3).submit(0, setup("cuda"))


def test_a_unit_that_ends_its_actor_three_times_is_named_and_the_rest_is_kept(small, made: MadeRay):
    bad, tried = mh.HeadId(1, 2), Counter[Any]()

    def trouble(data: bytes) -> bool:
        units = request.batch.units if isinstance(request := pickle.loads(data), Request) else ()
        tried.update(units)
        return (bad, 0) in units

    made.trouble = trouble
    with pytest.warns(UserWarning, match="L1H2, place 0 ended 3 workers, so it has no value; the last time, Ray said"):
        ours = mh.ablate(small, CLEAN, budget=EVERY_UNIT, workers=mh.scale.Ray(replicas=2), **QUIET)
    assert ours.missing == (bad,)
    assert tried.pop((bad, 0)) == 3
    assert set(tried.values()) == {1} and len(tried) == small.n_layers * small.n_heads - 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replicas": 0}, "replicas is 0; it must be at least 1"),
        ({"gpus_per_replica": -1}, "gpus_per_replica is -1; give 0, a part of a GPU such as 0.5, a whole number"),
        ({"gpus_per_replica": 1.5}, "gpus_per_replica is 1.5; give 0"),
        ({"gpus_per_replica": float("nan")}, "gpus_per_replica is nan; give 0"),
        ({"gpus_per_replica": float("inf")}, "gpus_per_replica is inf; give 0"),
    ],
)
def test_bad_numbers_are_refused(made: MadeRay, given, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        mh.scale.Ray(**given)


def test_without_ray_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'mh\.scale\.Ray needs ray: pip install "mechheads\[ray\]"; or take mh'):
        mh.scale.Ray()


@pytest.fixture(scope="module")
def cluster():
    with mh.scale.Ray(replicas=2) as workers:
        yield workers


@needs_ray
@pytest.mark.slow
def test_real_actors_give_the_numbers_of_one_process_and_with_the_same_cuts_its_bits(small, cluster):
    handler = signal.getsignal(signal.SIGTERM)
    alone = mh.activation_patch(small, PAIRS, site="k", budget=EVERY_UNIT, **QUIET)
    assert same(mh.activation_patch(small, PAIRS, site="k", budget=EVERY_UNIT, workers=cluster, **QUIET), alone)
    np.testing.assert_allclose(
        mh.ships(small, CLEAN, workers=cluster, **QUIET).scores,
        mh.ships(small, CLEAN, **QUIET).scores,
        rtol=0,
        atol=1e-6,
    )
    assert signal.getsignal(signal.SIGTERM) is handler


@needs_ray
@pytest.mark.slow
def test_25_kills_of_real_actors_lose_nothing_and_repeat_only_what_was_in_flight(
    small, cluster, tmp_path: Path, monkeypatch
):
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
            assert same(sweep(workers=cluster), alone)
            lost = len(killed) - before + 1  # one more if it was killed just before
            assert n <= len(log.read_text().split()) - computed <= n + lost
    finally:
        over.set()
        killer.join()
    assert len(killed) == 25


@needs_ray
@pytest.mark.slow
def test_a_unit_that_kills_real_actors_is_named_and_the_rest_is_kept(small, cluster):
    def deadly(z, context):
        if context.head == mh.HeadId(2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return z * 0.5

    with pytest.warns(UserWarning, match="L2H1, place 0 ended 3 workers, so it has no value; the last time, Ray said"):
        found = mh.sweep(small, CLEAN, intervention=deadly, budget=EVERY_UNIT, workers=cluster, **QUIET)
    assert found.missing == (mh.HeadId(2, 1),)


DRIVER = """
import signal, sys, time
import mechheads as mh
from mechheads.limits import Limits
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored if the tests run in the background

def half(z, context):
    time.sleep(0.2)
    return z * 0.5

workers = mh.scale.Ray(replicas=2)
given = dict(intervention=half, positions="each", budget=Limits(tokens=1, logit_rows=1), progress=False)
found = mh.sweep(mh.load(sys.argv[1]), PLACES, workers=workers, store=sys.argv[2], **given)
assert found.provenance["interrupted"] and found.missing, "all of it was computed"
"""


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_ctrl_c_and_a_killed_driver_keep_what_is_done_and_leave_no_actor(tiny, tmp_path: Path, sent, code):
    store = tmp_path / "ledger"
    words = [sys.executable, "-c", f"PLACES = {PLACES}\n{DRIVER}", str(tiny("llama")), str(store)]
    with subprocess.Popen(words, start_new_session=True) as driver:
        while not store.exists() or finished(store) < 3:
            assert driver.poll() is None
            time.sleep(0.05)
        actors = actors_of(driver.pid)
        if sent == signal.SIGINT:
            os.killpg(driver.pid, sent)  # as a terminal does
        else:
            driver.send_signal(sent)
        assert driver.wait() == code
    given_up = time.monotonic() + 30
    while actors_of(driver.pid) and time.monotonic() < given_up:
        time.sleep(0.05)
    assert len(actors) == 2 and not actors_of(driver.pid)
    assert finished(store) >= 3


def finished(store: Path) -> int:
    return sum(sweep["units"] for sweep in Ledger.list(store))


def actors_of(driver: int) -> set[int]:
    """The actors that run in the session of a driver."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            if int(session) == driver and state != "Z" and b"ray::_Served" in (path / "cmdline").read_bytes():
                found.add(int(path.name))
    return found
