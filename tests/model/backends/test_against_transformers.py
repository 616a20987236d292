"""The trial at loading is long enough to see what short prompts hide."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

import mechheads as mh
from mechheads.model.backends.against_transformers import trial_of
from mechheads.model.load import from_transformers
from support.tiny import randomise

SIZES: dict[str, Any] = {
    "vocab_size": 400,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def rotations(kind: str, old: int, **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": old} | more


@pytest.mark.parametrize(
    ("kind", "about", "length"),
    [
        ("Llama", {}, 128),
        ("Llama", {"max_position_embeddings": 40}, 40),
        ("Mistral", {"sliding_window": 300}, 332),
        ("Mistral", {"sliding_window": 992}, 1024),
        ("Mistral", {"sliding_window": 993}, 128),
        ("Mistral", {"sliding_window": 300, "max_position_embeddings": 310}, 310),
        ("Llama", {"rope_parameters": rotations("yarn", 500)}, 532),
        ("Llama", {"rope_parameters": rotations("yarn", 2000)}, 128),
        (
            "Gemma3Text",
            {
                "head_dim": 8,
                "sliding_window": 200,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": rotations("yarn", 700),
                },
            },
            732,
        ),
    ],
)
def test_the_trial_reaches_beyond_windows_and_the_context_before_scaling(
    kind: str, about: dict[str, Any], length: int
) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES | {"pad_token_id": 0} | about)
    model = transformers.AutoModelForCausalLM.from_config(config)
    trial = trial_of(model)
    assert trial is not None
    assert trial.ids.shape == (1, length)
    assert trial.places[0] == 0 and trial.places[-1] == length - 1
    with torch.no_grad():
        torch.testing.assert_close(trial.logits, model(trial.ids).logits[:, trial.places], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"sliding_window": 100},
        {"rope_parameters": rotations("linear", 64)},
        {"rope_parameters": rotations("llama3", 64, low_freq_factor=1.0, high_freq_factor=4.0)},
    ],
    ids=["window", "linear", "llama3"],
)
def test_a_model_that_is_wrong_on_long_prompts_only_is_refused(tiny: Any, other: dict[str, Any]) -> None:
    """The same weights, where one model has a window or scaled rotations, and what runs here has not."""
    sizes = SIZES | {"max_position_embeddings": 256, "sliding_window": None, "pad_token_id": 0}
    plain = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes)).eval()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            randomise(name, parameter, "llama")
    true = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes | other)).eval()
    true.load_state_dict(plain.state_dict())
    trial, same = trial_of(true), trial_of(copy.deepcopy(plain))
    assert trial is not None and same is not None
    backend = from_transformers(plain, transformers.AutoTokenizer.from_pretrained(tiny("gpt2")), "plain").backend
    backend.check_same_logits(same)
    with pytest.raises(ValueError, match=r"and transformers give different logits on a prompt of 1\d\d tokens"):
        backend.check_same_logits(trial)


def test_the_trial_is_made_at_loading(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(
        "mechheads.model.backends.base.Backend.check_same_logits",
        lambda self, trial: tried.append(trial.ids.shape[1]),
    )
    mh.load(tiny("llama"))
    assert tried == [64]


def test_a_model_that_transformers_cannot_run_is_refused(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, **_: Any) -> None:
        raise TypeError("no such thing. Really")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", fails)
    with pytest.raises(ValueError, match=r"cannot be read: transformers cannot run it: no such thing \(TypeError\)"):
        mh.load(tiny("llama"))
