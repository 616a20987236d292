"""The state around a call: a model that has changed, training mode, torch's own settings, interventions that write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.model.backends.state import arithmetic
from support.texts import CLEAN, PAIRS

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture
def small(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


def weight_of(model: mh.Model, *parts: str) -> torch.Tensor:
    """The first weight of which one of these is a part of the name, which differs between releases."""
    return next(weight for name, weight in model.model.named_parameters() if any(part in name for part in parts))


def write(model: mh.Model) -> None:
    with torch.no_grad():
        weight_of(model, "q_proj", "W_Q").mul_(1.5)


def write_into_data(model: mh.Model) -> None:
    weight_of(model, "mlp").data[0, 0] += 1


CHANGES: dict[str, Callable[[mh.Model], Any]] = {
    "its weight": write,
    "its weight .*mlp": write_into_data,
    "its dtype or device": lambda model: model.model.to(torch.bfloat16),
    "its hooks at blocks.0": lambda model: model.model.add_hook("blocks.0.hook_resid_post", lambda value, hook: value),
}


@pytest.mark.parametrize("said", CHANGES)
def test_a_job_of_a_model_that_has_changed_is_refused(small: mh.Model, said: str) -> None:
    job = mh.prepare(small, PAIRS, **QUIET)
    before = mh.activation_patch(job, **QUIET)
    np.testing.assert_array_equal(mh.activation_patch(job, **QUIET).values, before.values)
    CHANGES[said](small)
    for analysis in (mh.activation_patch, mh.path_patch, mh.patching.attribution_patch):
        with pytest.raises(ValueError, match=f"^job: the model has changed since .*: {said}.*prepare a new job"):
            analysis(job, **QUIET)


def test_a_run_of_a_model_that_has_changed_gives_no_logits(small: mh.Model) -> None:
    run = small.cache(CLEAN, **QUIET)
    before = run.logits
    write(small)
    for ask in (lambda: run.logits, lambda: run.result):
        with pytest.raises(ValueError, match="weights have changed since this run was cached"):
            ask()
    assert not torch.equal(small.cache(CLEAN, **QUIET).logits, before)


def test_a_model_in_training_mode_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = mh.load(tiny("gpt2"), backend="bridge")  # HookedTransformer has no dropout
    model.model.train()
    for analysis in (mh.ablate, mh.generate, lambda *given, **more: given[0].cache(given[1], **more)):
        with pytest.raises(ValueError, match=r"model is in training mode .*call its eval\(\) first"):
            analysis(model, CLEAN, **QUIET)
    model.model.eval()
    mh.ablate(model, CLEAN, **QUIET)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_default_dtype_is_refused(small: mh.Model, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        with pytest.raises(ValueError, match=f"torch's default dtype is {dtype}"):
            mh.ablate(small, CLEAN, **QUIET)
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_changes_no_number(small: mh.Model) -> None:
    wanted = mh.ablate(small, CLEAN, **QUIET)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mh.ablate(small, CLEAN, **QUIET)
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(found.values, wanted.values)
    with torch.inference_mode():
        np.testing.assert_array_equal(mh.ablate(small, CLEAN, **QUIET).values, wanted.values)


def test_the_precision_of_products_is_part_of_a_ledgers_key(small: mh.Model, tmp_path: Path) -> None:
    assert arithmetic(torch.device("cpu")) == "cpu"
    mh.ablate(small, CLEAN, store=tmp_path / "store", **QUIET)
    torch.set_float32_matmul_precision("medium")
    try:
        assert arithmetic(torch.device("cpu")) == "cpu, float32 products in medium precision"
        mh.ablate(small, CLEAN, store=tmp_path / "store", **QUIET)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(Ledger.list(tmp_path / "store")) == 2


def other_but_first(z: torch.Tensor, context: Any) -> torch.Tensor:
    new = context.source.z[context.head]
    new[:, 0] = z[:, 0]
    return new


def halved(z: torch.Tensor, context: Any) -> torch.Tensor:
    z = context.base.z.layer(context.head.layer)[:, context.head.head]
    z *= 0.5
    return z


def test_an_intervention_that_writes_into_a_cached_run_changes_nothing_but_its_own_value(small: mh.Model) -> None:
    job = mh.prepare(small, PAIRS, **QUIET)
    wanted = mh.activation_patch(job, **QUIET)
    plain = mh.sweep(job, intervention=mh.patching.Scale(0.5), metric=mh.logit_diff, **QUIET)
    for intervention in (other_but_first, halved):
        found = mh.sweep(job, intervention=intervention, metric=mh.logit_diff, **QUIET)
    np.testing.assert_allclose(found.values, plain.values, atol=1e-5)
    np.testing.assert_allclose(mh.activation_patch(job, **QUIET).values, wanted.values, atol=1e-5)
