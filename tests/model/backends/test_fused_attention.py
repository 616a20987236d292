"""Attention without patterns: the same numbers as step by step, and no pattern anywhere unless somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import mechheads as mh
from mechheads.model.backends.fused_attention import is_causal
from support.releases import only_on_4

pytestmark = [pytest.mark.transformerlens, only_on_4]

FUSED = ("llama", "qwen", "gemma3", "granite")
STEP_BY_STEP = ("gpt2", "neox", "gemma", "bloom")
"""Their queries, keys and values come from one projection, or their scores have a soft cap."""
TEXTS = ["The capital of France is Paris and the capital of Italy is", "When John and Mary went to the store John gave"]


def both(folder: Path) -> tuple[mh.Model, mh.Model]:
    return mh.load(folder), mh.load(folder, attn_implementation="eager")


def pairs() -> mh.PromptPairs:
    return mh.PromptPairs(
        clean=["The capital of France is", "The capital of Spain is"],
        corrupted=["The capital of Italy is", "The capital of Germany is"],
        answer=[" Paris", " Madrid"],
        wrong=[" Rome", " Berlin"],
    )


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor whose last two axes have a certain size."""

    def __init__(self, pos: int) -> None:
        super().__init__()
        self.pos, self.n = pos, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.ndim == 4 and tensor.shape[-2:] == (self.pos, self.pos):
                self.n = max(self.n, tensor.shape[1])
        return out


def heads_with_patterns(model: mh.Model, run: Callable[[list[list[int]]], object]) -> int:
    """Of how many heads together a run holds scores or patterns."""
    prompt = model.backend.trial_tokens(1, 50).tolist()
    with Largest(50) as seen:
        run(prompt)
    return seen.n


@pytest.mark.parametrize("name", FUSED)
def test_only_who_asks_for_a_pattern_gets_one(tiny: Callable[[str], Path], name: str) -> None:
    fused, eager = both(tiny(name))
    assert heads_with_patterns(fused, lambda ids: fused.cache(ids, sites=("z", "q", "k", "v"))) <= 1  # the mask
    assert heads_with_patterns(fused, fused.cache) == 4
    assert heads_with_patterns(eager, lambda ids: eager.cache(ids, sites=("z",))) == 4


@pytest.mark.parametrize("name", STEP_BY_STEP)
def test_other_attentions_are_computed_step_by_step(tiny: Callable[[str], Path], name: str) -> None:
    model = mh.load(tiny(name))
    assert heads_with_patterns(model, lambda ids: model.cache(ids, sites=("z",))) == 4


@pytest.mark.parametrize("name", FUSED)
def test_every_kind_of_run_gives_the_same_numbers(tiny: Callable[[str], Path], name: str) -> None:
    fused, eager = both(tiny(name))
    for sites in (("z", "q", "k", "v"), ("z", "pattern")):
        runs = [model.cache(TEXTS, sites=sites) for model in (fused, eager)]
        torch.testing.assert_close(runs[0].final, runs[1].final, atol=1e-5, rtol=1e-5)
        for site in sites:
            found, wanted = (getattr(run, site) for run in runs)
            for layer in range(3):
                torch.testing.assert_close(found.layer(layer), wanted.layer(layer), atol=1e-5, rtol=1e-5)
    for analysis in (
        lambda model: mh.activation_patch(model, pairs(), progress=False),
        lambda model: mh.activation_patch(model, pairs(), site="pattern", progress=False),
        lambda model: mh.path_patch(model, pairs(), receivers="L2H1.k", progress=False),
        lambda model: mh.ablate(model, TEXTS, kind="mean", progress=False),
        lambda model: mh.patching.attribution_patch(model, pairs(), progress=False),
        lambda model: mh.ships(model, TEXTS, progress=False),
    ):
        found, wanted = (analysis(model).scores.values for model in (fused, eager))
        assert found == pytest.approx(wanted, abs=2e-5, nan_ok=True)


def test_a_hook_of_the_user_sees_what_it_saw(tiny: Callable[[str], Path]) -> None:
    model, seen = mh.load(tiny("llama")), []
    model.model.add_hook("blocks.1.attn.hook_attn_scores", lambda scores, hook: seen.append(scores.shape))
    try:
        model.cache(TEXTS, sites=("z",))
    finally:
        model.model.reset_hooks()
    assert [shape[1] for shape in seen] == [4]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_model_is_as_before_after_an_error_inside_attention(tiny: Callable[[str], Path], error: Any) -> None:
    model = mh.load(tiny("llama"))
    attention = model.model.blocks[1].attn

    def stop(value: Any, hook: Any) -> None:
        assert attention.original_component.config._attn_implementation == "sdpa"
        raise error

    with pytest.raises(error):
        model.backend.run(model.backend.trial_tokens(1, 5), [("blocks.1.attn.hook_z", stop)])
    assert attention.original_component.config._attn_implementation == "eager"
    assert "forward" not in attention.__dict__


def test_a_wrapped_model_is_fused_and_its_own_forward_pass_is_not(tiny: Callable[[str], Path]) -> None:
    bridge = mh.load(tiny("llama")).model
    model = mh.wrap(bridge)
    assert heads_with_patterns(model, lambda ids: model.cache(ids, sites=("z",))) <= 1
    assert heads_with_patterns(model, lambda ids: bridge(torch.tensor(ids))) == 4
    eager = mh.wrap(bridge, attn_implementation="eager")
    assert heads_with_patterns(eager, lambda ids: eager.cache(ids, sites=("z",))) == 4


def test_an_attention_that_computes_something_else_is_not_used(tiny: Callable[[str], Path], monkeypatch: Any) -> None:
    import transformers.integrations.sdpa_attention as sdpa
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def halved(*args: Any, **kwargs: Any) -> Any:
        out, weights = sdpa.sdpa_attention_forward(*args, **kwargs)
        return out / 2, weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", halved)
    model = mh.load(tiny("llama"))
    assert heads_with_patterns(model, lambda ids: model.cache(ids, sites=("z",))) == 4


def test_a_long_mask_is_known_to_be_causal() -> None:
    seen = torch.ones(300, 300, dtype=torch.bool).tril()
    added = torch.zeros(2, 1, 300, 300).masked_fill(~seen, torch.finfo(torch.float32).min)
    assert is_causal(seen[None, None]) and is_causal(added)
    for mask in (seen & ~torch.eye(300, dtype=torch.bool), seen | seen.T, seen[:, 1:], seen[:200, :200]):
        assert not is_causal(mask[None, None])
    added[1, 0, 299, 0] = added.min()
    assert not is_causal(added)


@pytest.mark.parametrize("impl", ["sdpa", "eager"])
def test_long_prompts_of_a_sliding_window_are_the_models_own(tiny: Callable[[str], Path], impl: Any) -> None:
    model = mh.load(tiny("gemma3"), attn_implementation=impl)
    ids = model.backend.trial_tokens(1, 300)
    logits = model.backend.unembed(model.backend.run(ids)[0])
    torch.testing.assert_close(logits, model.backend.own_logits(ids)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("wrong", ["flash", None, ""])
def test_there_are_two_ways(tiny: Callable[[str], Path], wrong: Any) -> None:
    with pytest.raises(ValueError, match=r'attn_implementation is .*; choose "sdpa" or "eager"'):
        mh.load(tiny("llama"), attn_implementation=wrong)


def test_a_copy_and_a_source_keep_the_choice(tiny: Callable[[str], Path]) -> None:
    from mechheads.model.load import in_dtype, load_again

    choices: tuple[Literal["sdpa", "eager"], ...] = ("sdpa", "eager")
    for choice in choices:
        model = mh.load(tiny("llama"), attn_implementation=choice)
        assert model.source is not None
        assert load_again(model.source, "cpu").attn_implementation == choice
        assert in_dtype(model, torch.bfloat16).attn_implementation == choice
