"""The proof at loading: what a model gives before TransformerLens is what it gives afterwards, on long prompts too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

import mechheads as mh
from mechheads.model.load import from_transformers
from mechheads.model.loading import prove_loaded, references_of
from support.releases import only_on_4
from support.texts import PAIRS
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
    ("kind", "metadata", "length"),
    [
        ("Llama", {"max_position_embeddings": 5}, 5),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, 128),
        ("Mistral", {"sliding_window": 300}, 332),
        ("Mistral", {"sliding_window": 993}, 128),
        ("Llama", {"rope_parameters": rotations("yarn", 500)}, 532),
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
    kind: str, metadata: dict[str, Any], length: int
) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES | {"pad_token_id": 0} | metadata)
    model = transformers.AutoModelForCausalLM.from_config(config)
    references = references_of(model)
    assert [len(each.places) for each in references] == [min(length, 8), 16][: len(references)]
    assert references[-1].ids.shape == (1, length) and (len(references) == 1) == (length <= 8)
    for each in references:
        assert each.places[0] == 0 and each.places[-1] == each.ids.shape[1] - 1
        with torch.no_grad():
            wanted = model(each.ids).logits[0, each.places]
        torch.testing.assert_close(each.logits, wanted, atol=1e-5, rtol=1e-5)


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
    wanted, same = references_of(true), references_of(copy.deepcopy(plain))
    model = from_transformers(plain, transformers.AutoTokenizer.from_pretrained(tiny("gpt2")), "plain")
    prove_loaded(model, same)
    with pytest.raises(ValueError, match=r"and transformers give different logits on a prompt of 1\d\d tokens"):
        prove_loaded(model, wanted)


def louder(model: Any) -> None:
    model.lm_head.weight.mul_(1.05)


def other_norms(model: Any) -> None:
    for layer in model.model.layers:
        layer.input_layernorm.variance_epsilon = 0.05


def other_rotations(model: Any) -> None:
    model.model.rotary_emb.inv_freq.mul_(1.3)


def other_scale(model: Any) -> None:
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.1


def one_weight(model: Any) -> None:
    model.model.layers[1].self_attn.v_proj.weight[3].mul_(-1)


@only_on_4
@pytest.mark.parametrize("change", [louder, other_norms, other_rotations, other_scale, one_weight])
def test_a_model_that_is_not_quite_the_one_it_was_made_from_is_refused(tiny: Any, change: Any) -> None:
    true = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    model = from_transformers(copy.deepcopy(true), transformers.AutoTokenizer.from_pretrained(tiny("llama")), "llama")
    prove_loaded(model, references_of(true))
    with torch.no_grad():
        change(true)
    with pytest.raises(ValueError, match="TransformerBridge and transformers give different logits on a prompt of 8"):
        prove_loaded(model, references_of(true))


def more_from_heads(model: mh.Model) -> None:
    inner = model.model.original_model.model.layers[1].self_attn.o_proj
    inner.register_forward_hook(lambda module, given, out: 1.1 * out)


def mean_over_tokens(model: mh.Model) -> None:
    inner = model.model.original_model.model.layers[1].mlp
    inner.register_forward_hook(lambda module, given, out: out + out.mean(1, keepdim=True))


@only_on_4
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            more_from_heads,
            r"layer 1 \(LlamaDecoderLayer\) does more with its heads' output, or with other tokens, than",
        ),
        (mean_over_tokens, "its blocks one by one and the whole TransformerBridge give different logits"),
    ],
)
def test_a_model_whose_weights_are_not_all_that_it_does_is_refused(tiny: Any, change: Any, said: str) -> None:
    model = mh.load(tiny("llama"))
    change(model)
    with pytest.raises(ValueError, match=said):
        mh.wrap(model.model, model.tokenizer)


@pytest.mark.parametrize("site", ["q", "k", "v", "pattern"])
def test_a_hook_that_changes_nothing_is_noticed_before_it_is_used(tiny: Any, site: Any) -> None:
    model = mh.load(tiny("llama"))
    mh.activation_patch(model, PAIRS, site=site, heads="L0H1")
    usual, deaf = model.backend._hook_on, {model.hook_name(site, layer) for layer in range(model.n_layers)}

    def hook_on(name: str, hook: Any) -> Any:
        def only_reads(value: torch.Tensor, hook: Any, given: Any = hook) -> None:
            given(value, hook=hook)

        return usual(name, only_reads if name in deaf else hook)

    model.backend._hook_on, model.backend._ignored = hook_on, {}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=f"site '{site}' of model .* can be read but not changed"):
        mh.activation_patch(model, PAIRS, site=site, heads="L0H1")
