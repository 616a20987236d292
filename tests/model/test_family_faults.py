"""A fault that only some number formats showed, with the test that would have found it."""

from __future__ import annotations

import pytest
import torch

import mechheads as mh
from mechheads.interventions.new_z import CheckedIntervention, new_z

TEXTS = [" The capital of France is", " When John and Mary went to the store"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_change_is_a_change_however_small(tiny, dtype):
    """In bfloat16 changes of less than 6% once counted as none, so that earlier positions stayed as they were."""
    model = mh.load(tiny("llama"), dtype=dtype)
    base = model.cache(TEXTS)
    for layer in range(model.n_layers):
        for factor, changed in ((0.97, True), (1.0, False)):
            rule, head = mh.patching.Scale(factor), mh.HeadId(layer, 1)
            new, differs = new_z(CheckedIntervention(rule), base, None, [head], None)
            assert differs[:, 0, 0].tolist() == [changed, changed]
            assert torch.equal(new[:, 0], base.z[head]) != changed
