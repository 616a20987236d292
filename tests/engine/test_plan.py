"""Plans of sweeps that workers share, and what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import ray

import mechheads as mh
from mechheads.engine.plan import Plan, with_workers
from support.made_workers import MadeWorkers
from support.settled import settled

PROMPTS = [" The capital of France is", " Once upon a time there was"]


@pytest.fixture
def model(llama: mh.Model) -> mh.Model:
    return llama


def planned(model: mh.Model, **options: Any) -> Plan:
    return settled(mh.plan)(model, PROMPTS, intervention=mh.Zero(), **options)


def on_gpu(model: mh.Model) -> Any:
    """The model, said to be on a GPU."""

    class OnGpu:
        device = type("Device", (), {"type": "cuda"})
        backend = model.backend

    return OnGpu()


def test_a_plan_with_workers_says_how_many_and_what_each_holds(model: mh.Model) -> None:
    workers = MadeWorkers(3)
    plan = planned(model, workers=workers)
    weights = sum(weight.numel() * weight.itemsize for weight in model.backend.module.parameters())
    assert (plan.workers, plan.model_bytes) == (3, weights)
    assert f"besides the model of {weights / 1024:.3g} KB in each of 3 workers" in repr(plan)
    assert "of 3 workers together" in repr(plan)
    assert not workers.computed
    assert not workers.stopped


def test_the_waves_of_a_plan_are_those_of_the_sweep_with_workers(model: mh.Model) -> None:
    workers = MadeWorkers(2)
    plan = planned(model, workers=workers)
    mh.sweep(model, PROMPTS, intervention=mh.Zero(), workers=workers)
    assert max(map(len, workers.computed)) == plan.stack * plan.joined
    assert sum(map(len, workers.computed)) == plan.units


def test_workers_on_gpus_share_the_units_and_each_caches_the_runs(model: mh.Model) -> None:
    plan = replace(planned(model), seconds=3610.0)
    four, one = (with_workers(plan, on_gpu(model), n, setup=10.0) for n in (4, 1))
    assert (four.seconds, one.seconds) == (10 + 3600 / 4, 3610)
    assert four.hours == pytest.approx(4 * 910 / 3600)
    many = with_workers(plan, on_gpu(model), 10 * plan.units, setup=10.0)
    assert many.seconds == 10 + 3600 / plan.units


def test_workers_on_a_cpu_take_as_long_together_as_one_process(model: mh.Model) -> None:
    plan = replace(planned(model), seconds=100.0)
    assert with_workers(plan, model, 4, setup=10.0).seconds == 100


def test_money_is_the_hours_of_all_workers_times_the_price(model: mh.Model) -> None:
    plan = replace(planned(model, price=2.5), seconds=7200.0)
    assert plan.cost == 5
    assert repr(plan).endswith("about 2 h 00 min; 2 hours, 5.00 at 2.5 an hour")
    shared = replace(with_workers(plan, on_gpu(model), 2, setup=0.0))
    assert shared.cost == 5
    assert repr(shared).endswith("about 60 min 00 s; 2 hours of 2 workers together, 5.00 at 2.5 an hour")
    assert planned(model).cost is None


@pytest.mark.parametrize("price", [-1.0, float("inf"), float("nan"), "2"])
def test_a_price_that_is_none_is_refused(model: mh.Model, price: Any) -> None:
    with pytest.raises(ValueError, match=r"^price is .*; give what an hour costs, such as 2.5, or leave it out$"):
        planned(model, price=price)


def test_a_plan_starts_no_worker(model: mh.Model) -> None:
    assert planned(model, workers=3).workers == 3
    assert not ray.is_initialized()
