"""Attention without patterns: the same numbers as step by step, and no pattern anywhere unless somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import mechheads as mh
from mechheads.runs.head_cache import HeadCache
from support.every_analysis import assert_same_numbers
from support.levels import architectures, few
from support.releases import only_on_4
from support.tiny_families import FAMILIES

pytestmark = only_on_4

FUSED = ("llama", "gpt2", "neox", "qwen", "gemma3", "granite")
MORE = ("falcon-7b", "gpt-j", "opt", "phi", "gpt-bigcode", "phi3", "cohere2", "llama4", "afmoe")
"""Tiny models of ``benchmarks`` that reach z in other ways than those above."""
STEP_BY_STEP = ("gemma2", "gpt-oss", "bloom", "falcon-alibi", "mpt", "xglm", "gpt-neo")
"""Soft caps, a logit beside the keys, biases for each head, and code of their own from q, k and v to z."""


def both(folder: Path) -> tuple[mh.Model, mh.Model]:
    model, eager = mh.load(folder), mh.load(folder)
    eager.backend.take_steps()
    return model, eager


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


@pytest.mark.parametrize("name", few(FUSED, "neox", "granite"))
def test_only_who_asks_for_a_pattern_gets_one(tiny: Callable[[str], Path], name: str) -> None:
    fused, eager = both(tiny(name))
    assert (
        heads_with_patterns(fused, lambda ids: HeadCache.run(fused, ids, sites=("z", "q", "k", "v"))) <= 1
    )  # the mask
    assert heads_with_patterns(fused, fused.cache) == 4
    assert heads_with_patterns(eager, lambda ids: eager.cache(ids, sites=("z",))) == 4


@pytest.mark.parametrize("name", architectures(*STEP_BY_STEP))
def test_other_attentions_are_computed_step_by_step(family: Callable[[str], Path], name: str) -> None:
    model = mh.load(family(name))
    assert heads_with_patterns(model, lambda ids: model.cache(ids, sites=("z",))) == 4


@pytest.mark.parametrize("name", few(FUSED, "llama", "gemma3"))
def test_analyses_give_the_numbers_of_step_by_step(tiny: Callable[[str], Path], name: str) -> None:
    models = both(tiny(name))
    for analysis in ("cache", "ablate", "patch k", "patch pattern", "paths", "attribution", "ships"):
        assert_same_numbers(analysis, models, 1e-5)


@pytest.mark.parametrize("name", architectures(*MORE))
def test_other_ways_to_z_give_the_same_numbers(family: Callable[[str], Path], name: str) -> None:
    fused, eager = both(family(name))
    assert (
        heads_with_patterns(fused, lambda ids: HeadCache.run(fused, ids, sites=("z", "q", "k", "v"))) <= 1
    )  # the mask
    assert heads_with_patterns(fused, fused.cache) == FAMILIES[name].config().num_attention_heads
    ids = fused.backend.trial_tokens(2, 40)
    found, wanted = (model.backend.run(ids) for model in (fused, eager))
    assert (found - wanted).abs().max() < 5e-6 * wanted.std()
    pairs = mh.PromptPairs([[5, 40, 17, 88, 23, 141, 9, 66]], [[5, 40, 90, 88, 23, 141, 30, 66]], [20], [180])
    effects = [mh.path_patch(model, pairs, receivers="L2H1.k").scores.values for model in (fused, eager)]
    np.testing.assert_allclose(*effects, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", few(["llama", "gpt2", "gpt-j"], "gpt-j"))
def test_the_model_is_as_before_after_an_error_inside_attention(
    family: Callable[[str], Path], name: str, error: Any
) -> None:
    model = mh.load(family(name))
    attention = model.model.blocks[1].attn
    own = attention.original_component

    def state() -> tuple[set[str], set[str], str]:
        return set(attention.__dict__), set(own.__dict__), own.config._attn_implementation

    def stop(value: Any, hook: Any) -> None:
        assert state() != before
        raise error

    before = state()
    for hook in ("hook_q", "hook_z"):
        with pytest.raises(error):
            model.backend.run(model.backend.trial_tokens(1, 5), [(f"blocks.1.attn.{hook}", stop)])
        assert state() == before


def test_an_attention_that_computes_something_else_is_not_used(tiny: Callable[[str], Path], monkeypatch: Any) -> None:
    import transformers.integrations.sdpa_attention as sdpa
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def halved(*args: Any, **kwargs: Any) -> Any:
        out, weights = sdpa.sdpa_attention_forward(*args, **kwargs)
        return out / 2, weights

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", halved)
    model = mh.load(tiny("llama"))
    assert heads_with_patterns(model, lambda ids: model.cache(ids, sites=("z",))) == 4
