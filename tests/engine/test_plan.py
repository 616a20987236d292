"""Plans of sweeps that workers share, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
import ray

import mechheads as mh
from mechheads.engine.plan import Plan
from support.made_workers import MadeWorkers

PROMPTS = [" The capital of France is", " Once upon a time there was"]


@pytest.fixture
def model(llama: mh.Model) -> mh.Model:
    return llama


def planned(model: mh.Model, **options: Any) -> Plan:
    return mh.plan(model, PROMPTS, intervention=mh.Zero(), **options)


def test_a_plan_with_workers_starts_none_and_says_how_many_there_are_and_what_each_holds(model: mh.Model) -> None:
    plan = planned(model, workers=3)
    assert not ray.is_initialized()
    weights = sum(weight.numel() * weight.itemsize for weight in model.backend.module.parameters())
    assert (plan.workers, plan.model_bytes) == (3, weights)
    assert f"besides the model of {weights / 1024:.3g} KB in each of 3 workers" in repr(plan)


def test_the_waves_of_a_plan_are_those_of_the_sweep_with_workers(model: mh.Model) -> None:
    workers = MadeWorkers(2)
    plan = planned(model, workers=workers)
    mh.sweep(model, PROMPTS, intervention=mh.Zero(), workers=workers)
    assert max(map(len, workers.computed)) == plan.stack * plan.joined
    assert sum(map(len, workers.computed)) == plan.units
