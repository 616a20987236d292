"""Workers on a Ray cluster, with a stand-in for Ray; tests/slow starts Ray itself."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mechheads as mh
from mechheads.limits import Limits
from mechheads.model.sources.source import Source
from mechheads.workers.messages import Request, Setup
from support.made_ray import MadeRay
from support.texts import CLEAN, PAIRS

QUIET: dict[str, Any] = {"progress": False}
EVERY_UNIT = Limits(tokens=1, logit_rows=1)


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


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


def test_an_error_that_cannot_travel_becomes_a_runtime_error_with_its_text(small, made: MadeRay):
    class Odd(Exception):
        def __reduce__(self):
            raise TypeError("not to be pickled")

    def odd(z, context):
        raise Odd("what is this")

    with pytest.raises(RuntimeError, match="Odd: what is this"):
        mh.sweep(small, CLEAN, intervention=odd, workers=mh.scale.Ray(), **QUIET)


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
