"""Faults that only some models or number formats showed, each with the test that would have found it."""

from __future__ import annotations

import pytest
import torch

import mechheads as mh
from mechheads.engine import work as engine_work
from mechheads.interventions.new_z import Finite, new_z

TEXTS = [" The capital of France is", " When John and Mary went to the store"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_change_is_a_change_however_small(tiny, dtype):
    """In bfloat16 changes of less than 6% once counted as none, so that earlier positions stayed as they were."""
    model = mh.load(tiny("llama"), dtype=dtype)
    base = model.cache(TEXTS)
    for layer in range(model.n_layers):
        for factor, changed in ((0.97, True), (1.0, False)):
            rule, head = mh.patching.Scale(factor), mh.HeadId(layer, 1)
            new, differs = new_z(rule, base, None, [head], None, Finite(rule))
            assert differs[:, 0, 0].tolist() == [changed, changed]
            assert torch.equal(new[:, 0], base.z[head]) != changed


def test_small_changes_in_bfloat16_are_told_apart_when_prompts_share_a_row():
    z = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    alike = z.expand(3, -1, -1)
    assert engine_work._rounding(alike) < 1e-4 * float(z.abs().max())
    off = alike.clone()
    off[1, 2, 3] += 0.25
    assert engine_work._rounding(off) >= 1.0


@pytest.mark.parametrize("chosen", [False, True], ids=["fresh", "used before"])
def test_weights_that_are_damaged_after_loading_are_named(tiny, chosen):
    model = mh.load(tiny("llama"))
    if chosen:
        mh.ablate(model, TEXTS, heads="L0H0")
    with torch.no_grad():
        mlp_weights = [weight for weight in model.model.parameters() if weight.numel() == 64 * 32]
        mlp_weights[-1][0] = torch.nan
    with pytest.raises(ValueError, match="gives NaN or infinity without any intervention, so its weights are damaged"):
        mh.ablate(model, TEXTS, heads="L0H0")
