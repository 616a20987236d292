"""A job of ``mh.prepare`` in place of prompts: every analysis gives the same, and no run is cached twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.engine import cached_runs
from mechheads.patching import HeadCache, Job
from support.levels import few
from support.texts import PAIRS

pytestmark = [
    pytest.mark.filterwarnings("ignore:the .* run prefers"),
]

ARCHITECTURES = few(("gpt2", "gemma"), "gemma")
PROMPTS = PAIRS.side("clean")
CIRCUIT = ["L0H1", "L1H0", "L1H3", "L2H2"]
SETS = [["L0H1"], ["L0H1", "L2H2"]]
MEAN: dict[str, Any] = {"metric": mh.log_prob, "intervention": mh.Mean()}
NOT_COUNTED = {"seconds": None, "bytes": 0}


def numbers(table: pd.DataFrame) -> np.ndarray:
    return table.select_dtypes("number").to_numpy(float)


ON_PAIRS: dict[str, Callable[..., Any]] = {
    "sweep": lambda *given: mh.sweep(*given, intervention=mh.Patch(), metric=mh.logit_diff).values,
    "sweep of the corrupted side": lambda *given: mh.sweep(*given, intervention=mh.Zero(), base="corrupted").values,
    "plan": lambda *given: replace(mh.plan(*given, intervention=mh.Patch()), **NOT_COUNTED),
    "activation_patch": lambda *given: mh.activation_patch(*given, positions="each").values,
    "activation_patch, noising": lambda *given: mh.activation_patch(*given, direction="noising").values,
    "path_patch": lambda *given: mh.path_patch(*given, receivers=["L2H1.q", "L1.mlp"]).values,
    "path_matrix": lambda *given: mh.path_matrix(*given, receivers=["L2H1.v", "final"]).values,
    "attribution_patch": lambda *given: mh.patching.attribution_patch(*given).values,
    "ablate": lambda *given: mh.ablate(*given, intervention="resample", seed=2).values,
    "patch_sets": lambda *given: mh.patching.patch_sets(*given, sets=SETS).values,
    "faithfulness": lambda *given: numbers(mh.patching.faithfulness(*given, heads=CIRCUIT).table),
}
ON_PROMPTS: dict[str, Callable[..., Any]] = {
    "sweep": lambda *given: mh.sweep(*given, intervention=mh.patching.Scale(0.4)).values,
    "plan": lambda *given: replace(mh.plan(*given, intervention=mh.Zero()), **NOT_COUNTED),
    "ablate": lambda *given: mh.ablate(*given, intervention="mean").values,
    "patch_sets": lambda *given: mh.patching.patch_sets(*given, sets=SETS, intervention=mh.Mean()).values,
    "faithfulness": lambda *given: numbers(mh.patching.faithfulness(*given, heads=CIRCUIT, **MEAN).table),
}
"""Every analysis that takes a job: none of these needs more of a run than z."""

ASKED = [(PAIRS, name) for name in ON_PAIRS] + [(PROMPTS, name) for name in ON_PROMPTS]
NAMES = [f"{name} of {'pairs' if prompts is PAIRS else 'prompts'}" for prompts, name in ASKED]


def analysis(prompts: mh.PromptPairs | mh.Prompts, name: str) -> Callable[..., Any]:
    return (ON_PAIRS if prompts is PAIRS else ON_PROMPTS)[name]


@pytest.fixture(scope="module")
def jobs(small) -> dict[int, Job]:
    """Of the pairs and of the prompts, by their ids."""
    return {id(prompts): mh.prepare(small, prompts) for prompts in (PAIRS, PROMPTS)}


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The ways in which prompts are run from here on, one entry a run."""
    seen: list[str] = []

    def counted(function: Callable[..., Any], way: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append(way)
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(HeadCache, "together", counted(HeadCache.together, "whole"))
    monkeypatch.setattr(cached_runs, "run_sharing_prefix", counted(cached_runs.run_sharing_prefix, "from new tokens"))
    return seen


@pytest.mark.parametrize(("prompts", "name"), ASKED, ids=NAMES)
def test_a_job_gives_what_its_prompts_give_without_another_run(small, jobs, runs, prompts, name):
    ask = analysis(prompts, name)
    expected = ask(small, prompts)
    assert runs, "the prompts are run if no job brings their runs"
    runs.clear()
    job = jobs[id(prompts)]
    found = [ask(job), ask(small, job)]
    assert runs == []
    for each in found:
        if name == "plan":
            assert each.flops < expected.flops, "the runs of a job cost nothing more"
            assert replace(each, flops=expected.flops, forwards=expected.forwards) == expected
        else:
            np.testing.assert_allclose(each, expected, atol=1e-5, rtol=0)


def test_a_job_runs_once_more_for_each_set_of_heads_that_is_given(small, jobs, runs):
    expected = mh.ablate(small, PROMPTS, given={"L0H1": "mean"}).values
    runs.clear()
    found = mh.ablate(jobs[id(PROMPTS)], given={"L0H1": "mean"}).values
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    assert runs == ["whole"]


def test_a_site_that_a_job_lacks_is_run_once_and_kept_as_if_it_had_been_asked_for(small, runs):
    expected = mh.activation_patch(small, PAIRS, site="q").values
    for sites, more in ((("z",), ["whole"] * 2), (("q",), [])):  # each side once more, or not at all
        job = mh.prepare(small, PAIRS, sites=sites)
        runs.clear()
        np.testing.assert_allclose(mh.activation_patch(job, site="q").values, expected, atol=1e-5, rtol=0)
        assert runs == more
        runs.clear()
        mh.activation_patch(job, site="q", direction="noising")
        mh.patching.attribution_patch(job, site="q")
        mh.activation_patch(job)
        assert runs == []
    with pytest.raises(ValueError, match=r"sites: 'queries' is not known; choose among z, pattern, q, k, v\."):
        mh.prepare(small, PAIRS, sites=("z", "queries"))


@pytest.mark.filterwarnings("ignore:budget is 1 B")
def test_a_job_on_disk_gives_the_same(small, jobs):
    on_disk = mh.settings(budget=1)(mh.prepare)(small, PAIRS)
    assert on_disk.base.stores["z"].on_disk and not jobs[id(PAIRS)].base.stores["z"].on_disk
    np.testing.assert_array_equal(ON_PAIRS["path_patch"](on_disk), ON_PAIRS["path_patch"](jobs[id(PAIRS)]))


@pytest.fixture(scope="module")
def other_jobs(loaded) -> dict[int, Job]:
    """Jobs of another model."""
    model = loaded("gpt2")
    return {id(prompts): mh.prepare(model, prompts) for prompts in (PAIRS, PROMPTS)}


@pytest.mark.parametrize(("prompts", "name"), [(PAIRS, "path_patch"), (PROMPTS, "ablate")])
def test_a_job_beside_prompts_or_of_another_model_is_an_error_and_so_are_no_prompts(llama, other_jobs, prompts, name):
    ask, job = analysis(prompts, name), other_jobs[id(prompts)]
    with pytest.raises(ValueError, match=r"both (pairs|prompts) and a job are given, but a job has its own prompts"):
        ask(job, prompts)
    with pytest.raises(ValueError, match=r"(pairs|prompts) is a job of another model; give a job of this model"):
        ask(llama, job)
    with pytest.raises(ValueError, match=r"(pairs|prompts) is missing; give prompts, or a job from mh.prepare"):
        ask(llama)
