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


def head_weight(model: mh.Model) -> torch.Tensor:
    head = own(model.model.unembed)
    return head.weight if hasattr(head, "weight") else head.W_U


def effect(model: mh.Model, **given: Any) -> np.ndarray:
    return mh.activation_patch(model, PAIRS, metric=mh.logit_diff, heads=["L0H1", "L2H3"], **given).values.values


def test_an_edit_in_half_precision_is_read(tiny: Callable[[str], Path]) -> None:
    small = mh.load(tiny("llama"), dtype=torch.bfloat16)
    before, logits = effect(small), small.cache(CLEAN).logits
    head_weight(small).data.neg_()
    np.testing.assert_allclose(effect(small), -before, atol=1e-5)
    torch.testing.assert_close(small.cache(CLEAN).logits, -logits, atol=1e-5, rtol=0)


def test_a_model_in_another_dtype_is_to_be_wrapped_anew(small: mh.Model) -> None:
    before = effect(small)
    small.model.to(torch.bfloat16)
    with pytest.raises(ValueError, match="load or wrap the model as it is now"):
        effect(small)
    now = effect(mh.wrap(small.model, small.tokenizer))
    assert 0 < np.nanmax(np.abs(now - before)) < 0.5


def test_a_kept_run_of_other_weights_gives_no_logits(small: mh.Model) -> None:
    for write in (nn.init.zeros_, lambda w: setattr(w, "data", w.data.clone())):
        run = small.cache(CLEAN)
        write(next(weight for weight in small.model.parameters() if weight.ndim > 1))
        with pytest.raises(ValueError, match="weights have changed since this run was cached"):
            _ = run.logits


@only_on_4
@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_setting_that_transformers_reads_is_honoured(tiny: Callable[[str], Path], name: str) -> None:
    model = mh.load(tiny(name))
    logits = model.cache(CLEAN).logits
    for block in model.model.blocks:
        own(block.attn).scaling *= 2
    ids = torch.tensor([model.tokenizer(CLEAN[0]).input_ids])
    with torch.no_grad():
        wanted = model.model.original_model(input_ids=ids, use_cache=False).logits[0]
    got = model.cache([ids[0].tolist()]).logits[0]
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert (got - logits[0, : len(got)]).abs().max() > 0.1


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
    with pytest.raises(ValueError, match=r"is not that of (the model's own|one plain) forward pass"):
        effect(model)
    inner.config.final_logit_softcapping = cap
    np.testing.assert_allclose(effect(model), before, atol=1e-6)


@only_on_4
def test_settings_of_transformerlens_change_no_number(small: mh.Model) -> None:
    before = effect(small)
    small.model.set_use_attn_result(True)
    np.testing.assert_allclose(effect(small), before, atol=1e-5)
    small.model.set_use_split_qkv_input(True)
    np.testing.assert_allclose(effect(small), before, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
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


def test_a_forward_pass_while_blocks_only_note_their_arguments_is_right(small: mh.Model) -> None:
    """In the trunk of a bridge, blocks pass their input on for a moment; only in the thread of the analysis."""
    ids = torch.tensor([[50, 51, 52]])
    with torch.no_grad():
        wanted = small.model(ids)
    found = []

    @analysis
    def run(model: mh.Model) -> None:
        from mechheads.model.changes import Forward

        def other() -> Any:
            with torch.no_grad():
                return model.model(ids)

        changes = [Forward(block, lambda x, *_a, **_k: x) for block in model.model.blocks]
        with model.backend.changes.made(changes):
            found.append(in_a_thread(other))

    run(small)
    torch.testing.assert_close(found[0], wanted, atol=1e-6, rtol=0)


def test_reads_that_run_the_model_wait_for_no_analysis_in_another_thread(small: mh.Model) -> None:
    states = torch.randn(2, small.d_model)
    reads: list[Callable[[], Any]] = [
        lambda: small.first_mlp(states),
        lambda: small.unembed(states),
        small.final_scale,
        lambda: small.attention_scale(1),
        lambda: small.cache(CLEAN),
    ]
    weights = [small.W_U.clone(), small.W_O[1].clone(), small.embed(torch.tensor([5])).clone()]

    @analysis
    def busy(model: mh.Model) -> list[Any]:
        return [in_a_thread(read) for read in reads]

    for error in busy(small):
        assert isinstance(error, RuntimeError) and "another thread is running an analysis" in str(error)

    @analysis
    def reading(model: mh.Model) -> list[Any]:
        return [in_a_thread(lambda: [small.W_U, small.W_O[1], small.embed(torch.tensor([5]))])]

    for got, wanted in zip(reading(small)[0], weights, strict=True):
        assert torch.equal(got, wanted)
    assert all(torch.is_tensor(read()) for read in reads[:4])
