"""The state around a call: a model that has changed, training mode, torch's own settings, interventions that write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.model.changes import arithmetic
from support.texts import CLEAN, PAIRS


@pytest.fixture
def small(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


def weight_of(model: mh.Model, *parts: str) -> torch.Tensor:
    """The first weight of which one of these is a part of the name, which differs between releases."""
    return next(weight for name, weight in model.model.named_parameters() if any(part in name for part in parts))


def write(model: mh.Model) -> None:
    with torch.no_grad():
        weight_of(model, "q_proj", "W_Q").mul_(1.5)


def test_a_job_of_other_weights_is_refused(small: mh.Model) -> None:
    job = mh.prepare(small, PAIRS)
    before = mh.activation_patch(job)
    np.testing.assert_array_equal(mh.activation_patch(job).values, before.values)
    write(small)
    for analysis in (mh.activation_patch, mh.path_patch, mh.patching.attribution_patch):
        with pytest.raises(ValueError, match=r"the model's weights have changed since .* prepare a new job"):
            analysis(job)


def test_a_model_in_training_mode_is_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    model = mh.load(tiny("gpt2"), backend="bridge")  # HookedTransformer has no dropout
    model.model.train()
    for call in (mh.ablate, mh.generate, mh.Model.cache, lambda model, _: mh.wrap(model.model)):
        with pytest.raises(ValueError, match=r"is in training mode.*call its eval\(\) first"):
            call(model, CLEAN)
    model.model.eval()
    mh.ablate(model, CLEAN)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_another_default_dtype_is_refused(small: mh.Model, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        with pytest.raises(ValueError, match=f"torch's default dtype is {dtype}"):
            mh.ablate(small, CLEAN)
    finally:
        torch.set_default_dtype(torch.float32)


def test_autocast_changes_no_number(small: mh.Model) -> None:
    wanted = mh.ablate(small, CLEAN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mh.ablate(small, CLEAN)
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(found.values, wanted.values)


def test_inference_mode_and_the_default_device_change_no_number(small: mh.Model) -> None:
    wanted = mh.patching.attribution_patch(small, PAIRS).values
    with torch.inference_mode():
        job = mh.prepare(small, PAIRS)
        np.testing.assert_array_equal(mh.patching.attribution_patch(small, PAIRS).values, wanted)
    np.testing.assert_allclose(mh.patching.attribution_patch(job).values, wanted, atol=1e-6)
    with torch.device("meta"):
        np.testing.assert_array_equal(mh.patching.attribution_patch(small, PAIRS).values, wanted)


def test_the_precision_of_products_is_part_of_a_ledgers_key(small: mh.Model, tmp_path: Path) -> None:
    assert arithmetic(torch.device("cpu")) == "cpu"
    mh.ablate(small, CLEAN, store=tmp_path / "store")
    torch.set_float32_matmul_precision("medium")
    try:
        assert arithmetic(torch.device("cpu")) == "cpu, float32 products in medium precision"
        mh.ablate(small, CLEAN, store=tmp_path / "store")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(Ledger.list(tmp_path / "store")) == 2
