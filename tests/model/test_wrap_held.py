"""``wrap`` of models of transformers and peft: the numbers of ``load``, and a model that stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

import mechheads as mh
from support.every_analysis import assert_same_numbers
from support.levels import architectures, few
from support.releases import TRANSFORMERLENS_4

IDS = torch.tensor([[5, 6, 7, 8, 9]])
Tiny = Callable[[str], Path]


def held(folder: Path) -> tuple[Any, Any]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def adapted(base: Any) -> Any:
    """A model with random adapters in queries, values and an MLP."""
    names = ["q_proj", "v_proj", "down_proj"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=names, init_lora_weights=False)).eval()


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def state(model: nn.Module) -> dict[str, Any]:
    return {
        "weights": {name: (id(value), value.clone()) for name, value in model.named_parameters()},
        "buffers": {name: (id(value), value.clone()) for name, value in model.named_buffers()},
        "parts": [(name, type(part), part.training, sorted(vars(part))) for name, part in model.named_modules()],
        "grad": [weight.requires_grad for weight in model.parameters()],
        "config": repr(model.config),
        "generation": repr(model.generation_config),
    }


def assert_as_it_was(model: nn.Module, before: dict[str, Any]) -> None:
    now = state(model)
    for kind in ("weights", "buffers"):
        assert now[kind].keys() == before[kind].keys()
        for name, (at, value) in before[kind].items():
            assert now[kind][name][0] == at
            assert torch.equal(now[kind][name][1], value)
    assert all(now[name] == before[name] for name in ("parts", "grad", "config", "generation"))


@pytest.mark.parametrize("name", architectures("gpt2", "llama", "neox", "gemma"))
def test_a_transformers_model_gives_the_numbers_of_load_and_stays_as_it_was(name: str, tiny: Tiny) -> None:
    model, tokenizer = held(tiny(name))
    before, usual = state(model), logits(model)
    wrapped = mh.wrap(model, tokenizer)
    assert torch.equal(logits(model), usual)
    for analysis in ("patch z", "ablate", "dynamic"):
        assert_same_numbers(analysis, (wrapped, mh.load(tiny(name))), 1e-5)
    assert torch.equal(logits(model), usual)
    assert_as_it_was(model, before)
    assert wrapped.tokenizer is tokenizer


@pytest.mark.parametrize("on", [True, False])
def test_adapters_count_as_they_are_switched(on: bool, tiny: Tiny) -> None:
    base, tokenizer = held(tiny("llama"))
    plain, model = logits(base), adapted(base)
    if not on:
        model.base_model.disable_adapter_layers()
    before, usual = state(model), logits(model)
    assert torch.equal(usual, plain) != on
    wrapped = mh.wrap(model, tokenizer)
    torch.testing.assert_close(wrapped.cache(IDS.tolist()).logits, usual, atol=1e-4, rtol=1e-4)
    mh.ablate(wrapped, IDS.tolist(), heads="L0H0")
    assert_as_it_was(model, before)
    assert torch.equal(logits(model), usual)


@pytest.mark.filterwarnings("ignore:Model with `tie_word_embeddings=True`")
@pytest.mark.parametrize("target", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_an_adapter_of_tied_embeddings_gives_the_logits_of_peft(target: list[str], tiny: Tiny) -> None:
    base, tokenizer = held(tiny("llama"))
    base.lm_head.weight = base.model.embed_tokens.weight
    base.config.tie_word_embeddings = True
    config = peft.LoraConfig(r=2, target_modules=target, task_type="CAUSAL_LM")
    model: Any = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    ours = mh.wrap(model, tokenizer).cache(IDS.tolist()).logits
    torch.testing.assert_close(ours, logits(model), atol=1e-3, rtol=1e-3)


def test_a_merged_adapter_that_is_off_is_taken_out(tiny: Tiny) -> None:
    base, tokenizer = held(tiny("llama"))
    plain, model = logits(base), adapted(base)
    model.merge_adapter()
    merged = logits(model)
    torch.testing.assert_close(mh.wrap(model, tokenizer).cache(IDS.tolist()).logits, merged, atol=1e-4, rtol=1e-4)
    model.base_model.disable_adapter_layers()
    torch.testing.assert_close(mh.wrap(model, tokenizer).cache(IDS.tolist()).logits, plain, atol=1e-4, rtol=1e-4)


def _on_meta(model: Any) -> None:
    model.transformer.h[1].to("meta")


def _mixed(model: Any) -> None:
    model.transformer.h[1].half()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_on_meta, "some of its weights are not in memory"),
        (_mixed, r"several dtypes \(torch\.float16, torch\.float32\)"),
    ],
)
def test_what_would_be_other_numbers_is_refused(change: Callable[[Any], None], said: str, tiny: Tiny) -> None:
    model, tokenizer = held(tiny("gpt2"))
    change(model)
    with pytest.raises(ValueError, match=said):
        mh.wrap(model, tokenizer)


@pytest.mark.parametrize("name", few(["gpt2", "llama"], "llama"))
def test_hooks_and_replaced_forwards_count_or_are_refused(name: str, tiny: Tiny) -> None:
    def louder(part: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        return 1.5 * out

    def replaced(part: nn.Module) -> None:
        usual = part.forward
        part.forward = lambda *args, **named: 1.5 * usual(*args, **named)

    refused: list[str] = []
    for change in (lambda part: part.register_forward_hook(louder), replaced):
        for at in ("mlp", "q_proj", "ln_1", "input_layernorm", "lm_head", "c_attn", "embed_tokens", "wte"):
            model, tokenizer = held(tiny(name))
            part = next((part for name, part in model.named_modules() if name.endswith(at)), None)
            if part is None:
                continue
            change(part)
            try:
                ours = mh.wrap(model, tokenizer).cache(IDS.tolist()).logits
            except ValueError as error:
                refused.append(str(error))
            else:
                torch.testing.assert_close(ours, logits(model), atol=1e-4, rtol=1e-4)
    most = 6 if TRANSFORMERLENS_4 else 10  # 3.9 copies the weights, without hooks
    assert len(refused) <= most and all("A torch hook is on" in said or "The forward of" in said for said in refused)


@pytest.mark.filterwarnings("ignore:.*lora_bias")
@pytest.mark.parametrize("kind", [{"lora_bias": True}, {"alora_invocation_tokens": [5, 6]}])
def test_adapters_that_cannot_be_merged_are_refused_with_the_reason(tiny: Tiny, kind: dict[str, Any]) -> None:
    model, tokenizer = held(tiny("llama"))
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **kind)
    with pytest.raises(ValueError, match=r"model: its adapter does more than change weights, so it cannot be merged"):
        mh.wrap(peft.get_peft_model(model, config).eval(), tokenizer)


def test_switched_adapters_are_another_model(tiny: Tiny) -> None:
    base, tokenizer = held(tiny("llama"))
    model = adapted(base)
    wrapped = mh.wrap(model, tokenizer)
    before = wrapped.cache(IDS.tolist()).logits
    reads: list[Callable[[], Any]] = [lambda: wrapped.cache(IDS.tolist()), lambda: wrapped.W_Q[0]]
    with model.disable_adapter():
        for read in reads:
            with pytest.raises(ValueError, match=r"its adapters were switched after it was wrapped.* wrap it again"):
                read()
    torch.testing.assert_close(wrapped.cache(IDS.tolist()).logits, before)
