"""Laws: a run changes nothing in itself, all of another run brings it back, and how work is cut changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import mechheads as mh
from mechheads.limits import DEFAULT_BUDGET, Limits
from support.every_analysis import EVERY
from support.levels import TWO_FIRST
from support.texts import CLEAN, PAIRS

ARCHITECTURES = TWO_FIRST

pytestmark = [
    pytest.mark.filterwarnings("ignore:budget is", "ignore:the .* run prefers"),
]

WORDS = [" The", " capital", " of", " France", " Italy", " and", " store", " yes", " dog", " three"]
sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map("".join)


@pytest.mark.parametrize("site", ["z", "q", "k", "v", "pattern"])
def test_a_run_patched_into_itself_changes_nothing(small, site):
    same = mh.PromptPairs(CLEAN, CLEAN, answer=[" Paris"] * 3, wrong=[" Rome"] * 3)
    effect = mh.activation_patch(small, same, site=site)
    np.testing.assert_allclose(effect.values, 0, atol=1e-5)


def test_all_heads_at_all_positions_restore_the_attention_output(small):
    """z of every head of a layer together is the layer's attention output, of the other run."""
    clean, corrupted = PAIRS.tokens(small)
    source = small.cache(clean, sites=("z",))
    mask = clean.mask[..., None]
    for layer in range(small.n_layers):
        seen = {}

        def give(z, hook, layer=layer):
            return source.z.layer(layer).transpose(1, 2)

        def see(value, hook, seen=seen):
            seen["out"] = value.clone()

        out = f"blocks.{layer}.hook_attn_out"
        small.backend.run(clean.ids, [(out, see)])
        wanted = seen["out"]
        small.backend.run(corrupted.ids, [(small.hook_name("z", layer), give), (out, see)])
        torch.testing.assert_close(seen["out"] * mask, wanted * mask, atol=1e-5, rtol=1e-5)


@settings(max_examples=8)
@given(prompts=st.lists(sentences, min_size=2, max_size=5), data=st.data())
def test_order_budget_and_choice_of_heads_change_no_number(llama: mh.Model, prompts: list[str], data: st.DataObject):
    order = data.draw(st.permutations(range(len(prompts))))
    whole = mh.ablate(llama, prompts)
    shuffled = mh.ablate(llama, [prompts[i] for i in order])
    np.testing.assert_allclose(whole.values[..., list(order)], shuffled.values, atol=1e-5)
    tight = mh.ablate(llama, prompts, budget=data.draw(st.sampled_from(["60 KB", "200 KB", "1 MB"])))
    np.testing.assert_allclose(whole.values, tight.values, atol=1e-5)
    some = mh.ablate(llama, prompts, heads=["L2H1"])
    np.testing.assert_allclose(whole.values[2, 1], some.values[2, 1], atol=1e-5)


ANALYSES = ("cache", "patch z", "attribution", "paths", "sets", "logits", "ships")

limits = st.builds(
    Limits,
    memory=st.sampled_from([1, 2**14, 2**17, 2**20, DEFAULT_BUDGET]),
    tokens=st.none() | st.integers(1, 64),
    logits=st.sampled_from([1, 300, 1000, 2**24]),
    logit_rows=st.integers(1, 40),
    run_tokens=st.integers(1, 40),
)


@pytest.fixture(scope="module")
def whole(llama: mh.Model) -> dict[str, Any]:
    """What each analysis gives with the default limits."""
    return {name: EVERY[name].numbers(llama) for name in ANALYSES}


@pytest.mark.parametrize("name", ANALYSES)
@settings(max_examples=2)
@given(limits=limits)
def test_the_pieces_that_work_is_cut_into_change_no_result(name, llama, whole, limits):
    with mh.settings(budget=limits):
        np.testing.assert_allclose(EVERY[name].numbers(llama), whole[name], atol=1e-5, rtol=0)
