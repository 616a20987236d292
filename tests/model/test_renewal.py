"""A model that is changed after it was loaded: analyses measure it as it is, or say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import mechheads as mh
from mechheads.model.analysis import analysis
from support.releases import only_on_4
from support.texts import CLEAN, PAIRS
from support.threads import in_a_thread


@pytest.fixture
def small(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


def own(module: Any) -> Any:
    """A module without the bridge around it."""
    return getattr(module, "original_component", None) or module


def effect(model: mh.Model, **given: Any) -> np.ndarray:
    return mh.activation_patch(model, PAIRS, metric=mh.logit_diff, heads=["L0H1", "L2H3"], **given).values.values


def test_a_kept_run_of_other_weights_gives_no_logits(small: mh.Model) -> None:
    for write in (nn.init.zeros_, lambda w: setattr(w, "data", w.data.clone())):
        run = small.cache(CLEAN)
        write(next(weight for weight in small.model.parameters() if weight.ndim > 1))
        with pytest.raises(ValueError, match="weights have changed since this run was cached"):
            _ = run.logits


@only_on_4
def test_another_head_or_soft_cap_is_refused_until_it_is_undone(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("gemma"))
    before, inner = effect(model), model.model.original_model
    head, cap = inner.lm_head, inner.config.final_logit_softcapping
    inner.lm_head = nn.Linear(model.d_model, model.d_vocab, bias=False)
    for read in (effect, lambda model: model.W_U):  # weights have no run that could be proved
        with pytest.raises(ValueError, match="its embedding or unembedding was replaced; load or wrap the model again"):
            read(model)
    inner.lm_head = head
    inner.config.final_logit_softcapping = 1.0
    with pytest.raises(ValueError, match=r"differs from (the model's own|one plain) forward pass"):
        effect(model)
    inner.config.final_logit_softcapping = cap
    np.testing.assert_allclose(effect(model), before, atol=1e-6)


@pytest.mark.parametrize("name", ["llama"])
def test_a_forward_pass_of_the_user_in_another_thread_changes_nothing_and_is_right(
    tiny: Callable[[str], Path], name: str
) -> None:
    model = mh.load(tiny(name))
    ids, other = torch.tensor([[40, 41, 42, 43]]), torch.tensor([[50, 51, 52]])

    def own_logits() -> torch.Tensor:
        with torch.no_grad():
            return model.model(other)

    wanted, found, seen = own_logits(), [], []

    def meanwhile(value: torch.Tensor, hook: Any) -> torch.Tensor:
        seen.append(value.shape)
        found.append(in_a_thread(own_logits))
        return 0 * value

    @analysis
    def run(model: mh.Model, hooks: Any) -> torch.Tensor:
        return model.backend.run(ids, hooks)

    names = [model.hook_name("z", 1), model.hook_name("resid_pre", 2), model.hook_name("v", 1)]
    plain = run(model, [(each, lambda value, hook: 0 * value) for each in names])
    torch.testing.assert_close(run(model, [(each, meanwhile) for each in names]), plain, atol=1e-6, rtol=0)
    assert len(seen) == 3 and all(shape[1] == 4 for shape in seen)
    for logits in found:
        torch.testing.assert_close(logits, wanted, atol=1e-5, rtol=0)
