"""Random language models, small enough to check by brute force, one of each architecture we promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = (
    " The capital of France Italy Spain Germany is Paris Rome Madrid Berlin When John and Mary went to the "
    "store gave a book big bigger small smaller dog cat one two three yes no I cannot help Sure"
)
"""Each of these words is one token with the space before it; anything else falls apart into smaller ones."""

CONTEXT = 64

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def build(name: str, folder: Path) -> None:
    """Save a tiny gpt2, llama, neox, gemma, gemma3 (two layers see two tokens), qwen, granite or bloom in a folder."""
    tokenizer = make_tokenizer(begins=name in ("llama", "gemma", "gemma3"))
    config = make_config(name, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter_name, parameter in model.named_parameters():
            randomise(parameter_name, parameter, name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_config(name: str, tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.PreTrainedConfig:
    """The configuration of a tiny model: 3 layers of 4 heads, d_model 32, a context of 64."""
    common = vocabulary_of(tokenizer)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
    }
    if name == "gpt2":
        return transformers.GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=CONTEXT, **common)
    if name == "llama":
        return transformers.LlamaConfig(num_key_value_heads=2, tie_word_embeddings=False, **sizes, **common)
    if name == "granite":
        return transformers.GraniteConfig(num_key_value_heads=2, logits_scaling=8.0, **sizes, **common)
    if name == "bloom":
        return transformers.BloomConfig(hidden_size=32, n_layer=3, n_head=4, **common)
    if name == "qwen":
        return transformers.Qwen3Config(num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, **sizes, **common)
    if name == "neox":
        rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
        return transformers.GPTNeoXConfig(
            use_parallel_residual=True, rope_parameters=rope, tie_word_embeddings=False, **sizes, **common
        )
    grouped = {"num_key_value_heads": 2, "head_dim": 16, "query_pre_attn_scalar": 16}
    if name == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention"]
        return transformers.Gemma3TextConfig(sliding_window=2, layer_types=layers, **grouped, **sizes, **common)
    if name == "gemma":
        return transformers.Gemma2Config(
            attn_logit_softcapping=5.0,
            final_logit_softcapping=6.0,
            sliding_window=CONTEXT,
            **grouped,
            **sizes,
            **common,
        )
    raise ValueError(f"there is no tiny model {name!r}")


def vocabulary_of(tokenizer: transformers.PreTrainedTokenizerFast) -> dict[str, Any]:
    """What a configuration says of its tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


@torch.no_grad()
def randomise(parameter_name: str, parameter: torch.Tensor, name: str) -> None:
    """Give a parameter a size at which every head and norm makes a visible difference."""
    if parameter.ndim == 1:
        is_scale = "norm" in parameter_name or ".ln_" in parameter_name
        centre = 1.0 if is_scale and parameter_name.endswith("weight") and not name.startswith("gemma") else 0.0
        parameter.normal_(centre, 0.2)
        return
    is_vocabulary = parameter.shape[0] > 256
    transposed = name == "gpt2" and ".h." in parameter_name
    fan_in = parameter.shape[0] if transposed else parameter.shape[1]
    parameter.normal_(0.0, (2.0 if is_vocabulary else 1.2) * fan_in**-0.5)


def make_tokenizer(*, begins: bool) -> transformers.PreTrainedTokenizerFast:
    """A byte-level tokenizer that knows ``WORDS``; ``begins`` puts a beginning token before every text."""
    specials = ["<bos>", "<eos>", "<pad>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS], trainer)
    if begins:
        tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 0)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
    )
