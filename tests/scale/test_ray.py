"""How workers ask Ray for what they need, with a stand-in for Ray; tests/slow starts Ray itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

import mechheads as mh
from mechheads.limits import Limits
from mechheads.model.sources import Source
from mechheads.scale import ray_cluster
from mechheads.scale.ray_cluster import RETRIES, Setup, pool_of
from support.made_workers import MadeRay
from support.texts import PAIRS

EVERY_UNIT = Limits(tokens=1, logit_rows=1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeRay]:
    ray = MadeRay(GPU=2)
    monkeypatch.setattr(ray_cluster, "library", lambda: ray)
    yield ray
    ray_cluster._shared.cache_clear()


def start(workers: mh.scale.Ray, device: str = "cpu") -> None:
    workers.prepare(Setup("key", Source("nowhere"), device, b""), 1)


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    return one.scores.values.tobytes() == other.scores.values.tobytes() and one.dataset.identical(other.dataset)


def test_a_number_means_the_same_workers_in_every_call_until_another_one_is_given(small, made: MadeRay):
    given: dict[str, Any] = {"site": "k", "budget": EVERY_UNIT}
    alone = mh.activation_patch(small, PAIRS, **given)
    for _ in range(2):
        assert same(mh.activation_patch(small, PAIRS, workers=2, **given), alone)
    assert (len(made.options), made.killed) == (2, [])
    assert same(mh.activation_patch(small, PAIRS, workers=3, **given), alone)
    assert (len(made.options), made.killed, len(made.started)) == (5, [0, 1], 1)


def test_where_a_head_looks_without_another_head_is_the_same_by_workers(small, made: MadeRay):
    given: dict[str, Any] = {"metric": mh.patching.attention_to("L2H1", 2), "budget": EVERY_UNIT, "given": "L0H1"}
    assert same(mh.activation_patch(small, PAIRS, workers=2, **given), mh.activation_patch(small, PAIRS, **given))
    given["receivers"] = "L2H1.q"
    assert same(mh.path_patch(small, PAIRS, workers=2, **given), mh.path_patch(small, PAIRS, **given))
    assert len(made.options) == 2


def test_a_cluster_of_this_machine_has_no_dashboard_no_statistics_and_ray_restarts_workers(
    made: MadeRay, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 9)
    monkeypatch.setattr("torch.set_num_threads", lambda n: None)
    workers = mh.scale.Ray(replicas=2)
    assert (workers.replicas, made.started) == (2, [])
    start(workers)
    assert made.started == [
        {
            "address": "local",
            "usage": "0",
            "log_to_driver": False,
            "logging_level": "warning",
            "num_cpus": 0,
            "include_dashboard": False,
        }
    ]
    assert made.options == [{"num_cpus": 0, "num_gpus": 0, "max_restarts": -1, "max_task_retries": RETRIES}]
    assert made.given == [(4,)]
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1" and "PYTHONBREAKPOINT" not in os.environ


def test_a_cluster_that_is_there_is_joined(made: MadeRay):
    for asked in ("head:6379", None, "auto", "10.0.0.1:1", "head:6379"):
        with mh.scale.Ray(asked, replicas=1) as workers:
            start(workers)
    (started,) = made.started
    assert started["address"] == "head:6379" and "num_cpus" not in started
    assert made.killed == [0, 1, 2, 3, 4]
    assert {one["num_cpus"] for one in made.options} == {1}
    with pytest.raises(ValueError, match=r"address is '10\.0\.0\.6:1', but this process is connected to the clu"):
        start(mh.scale.Ray("10.0.0.6:1", replicas=1))


def test_an_address_means_a_worker_for_each_gpu_or_for_each_machine(made: MadeRay):
    assert pool_of("auto").replicas == 2
    del made.resources["GPU"]
    assert pool_of("10.0.0.1:1").replicas == 3


@pytest.mark.parametrize(("device", "reserved"), [("cpu", 0), ("mps", 0), ("cuda", 1)])
def test_a_model_on_a_gpu_reserves_one(made: MadeRay, device, reserved):
    start(mh.scale.Ray(replicas=1), device)
    assert [one["num_gpus"] for one in made.options] == [reserved]


def test_workers_that_wait_for_a_gpu_say_so(made: MadeRay):
    del made.resources["GPU"]
    with pytest.warns(UserWarning, match="the Ray cluster has no GPU now; workers wait until it has one"):
        start(mh.scale.Ray(replicas=1), "cuda")
