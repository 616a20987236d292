"""A model that sees later tokens or other prompts is refused; a causal one is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import mechheads as mh
from mechheads.model.backends.causality import check_causal
from support.releases import only_on_4
from support.tiny import make_config, make_tokenizer


@only_on_4
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_attention_in_both_directions_is_refused(tmp_path: Any, kind: str, dtype: torch.dtype) -> None:
    tokenizer = make_tokenizer(begins=False)
    config = make_config("gemma3", tokenizer)
    config.use_bidirectional_attention, config.layer_types, config.sliding_window = True, [kind] * 3, 4
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="depends on later tokens, as in attention in both directions"):
        mh.load(tmp_path, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_causal_model_is_not_refused(tiny: Any, dtype: torch.dtype) -> None:
    model = mh.load(tiny("llama"), dtype=dtype)
    assert model.backend.causal
    model.backend.causal = False
    check_causal(model.backend)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x + x.mean(0, keepdim=True), "depend on the other prompts that run with it"),
        (lambda x: x + torch.rand_like(x), "the same tokens give other numbers each time"),
        (lambda x: x + x.mean(1, keepdim=True), "depends on later tokens"),
    ],
)
def test_what_is_not_causal_is_said(tiny: Any, monkeypatch: pytest.MonkeyPatch, change: Any, words: str) -> None:
    backend = mh.load(tiny("llama")).backend
    finish = backend.finish
    monkeypatch.setattr(backend, "finish", lambda residual: change(finish(residual)))
    backend.causal = False
    with pytest.raises(ValueError, match=words):
        check_causal(backend)


def test_a_model_with_hooks_is_tried_when_prompts_are_padded(tiny: Any) -> None:
    theirs = mh.load(tiny("llama")).model
    theirs.add_hook("blocks.0.hook_resid_post", lambda x, hook: x + x.mean(1, keepdim=True))
    wrapped = mh.wrap(theirs)
    wrapped.cache([[5, 6, 7]])
    with pytest.raises(ValueError, match="depends on later tokens"):
        wrapped.cache([[5, 6, 7], [5, 6]])
