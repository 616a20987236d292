"""Plans of sweeps that workers share, and what they cost."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch

import mechheads as mh
from mechheads.engine.plan import Plan, with_workers
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


@pytest.mark.parametrize(("kind", "seconds"), [("cuda", (10 + 3600 / 4, 3610, 10 + 3600 / 12)), ("cpu", (3610,) * 3)])
def test_workers_on_gpus_share_the_units_and_those_on_a_cpu_its_cores(
    model: mh.Model, kind: str, seconds: tuple[float, ...]
) -> None:
    there: Any = SimpleNamespace(device=torch.device(kind), backend=model.backend)
    plan = replace(planned(model), seconds=3610.0)
    shared = [with_workers(plan, there, n, setup=10.0) for n in (4, 1, 120)]  # of 12 units
    assert tuple(one.seconds for one in shared) == seconds
    assert repr(plan).endswith("about 60 min 10 s")


def test_the_seconds_count_the_proof_by_the_tokens_that_go_through_blocks(model: mh.Model, monkeypatch: Any) -> None:
    """On a clock that ticks when it is looked at, the runs, the new z and a wave of one head take a second each."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    plan = planned(model, heads=["L1H0"])
    lengths = mh.Prompts(PROMPTS).tokens(model).lengths.tolist()
    proved = model.n_layers * (sum(lengths) + max(lengths))  # each alone, and the changed one
    computed = (model.n_layers - 1) * plan.width * (plan.prompts if plan.groups is None else len(plan.groups))
    assert plan.seconds == pytest.approx(3 + proved / computed)
