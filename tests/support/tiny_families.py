"""Tiny random models, one or more of each architecture that transformers and TransformerLens both know.

They have three or four layers, so that every kind of layer occurs, and windows and chunks that are shorter than the
prompts. Norms, biases and gains are random too, because initial values of 0 or 1 would hide errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

WORDS = tuple(first + second + third for first in "bdfgklmnp" for second in "aeiou" for third in "drstx")
"""225 words, each one token with its leading space."""
VOCABULARY = 600

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_ROUTED: dict[str, Any] = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SSM: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
_LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@dataclass(frozen=True)
class Family:
    """An architecture, or a variant of one."""

    kind: str  # the name of its configuration in transformers, without ``Config``
    description: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    double: bool = True  # whether transformers runs it in float64

    def config(self) -> transformers.PreTrainedConfig:
        """The configuration with tiny sizes."""
        make: Callable[..., transformers.PreTrainedConfig] = getattr(transformers, f"{self.kind}Config")
        return make(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=1, pad_token_id=2, **self.sizes)


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, **more}}


_LONG: dict[str, Any] = {
    "original_max_position_embeddings": 16,
    **_rope(
        "longrope",
        short_factor=[1.0, 1.1, 1.3, 1.5],
        long_factor=[2.0, 3.0, 4.0, 5.0],
        original_max_position_embeddings=16,
        partial_rotary_factor=1.0,
    ),
}

FAMILIES: dict[str, Family] = {
    "afmoe": Family(
        "Afmoe",
        "gated attention, experts, sandwich norms, windows",
        _GROUPED | _EXPERTS | {"head_dim": 8, "num_dense_layers": 1, "sliding_window": 4},
    ),
    "apertus": Family("Apertus", "xIELU, q/k norms", _GROUPED | {"head_dim": 8}),
    "arcee": Family("Arcee", "squared ReLU", _GROUPED | {"head_dim": 8}),
    "bamba": Family("Bamba", "Mamba layers", _GROUPED | _SSM | {"attn_layer_indices": [1]}),
    "bitnet": Family("BitNet", "a norm before W_O", _GROUPED),
    "bloom": Family("Bloom", "ALiBi", {"hidden_size": 32, "n_layer": 3, "n_head": 4}),
    "codegen": Family("CodeGen", "parallel blocks, fused q, v and k", _GPT | {"rotary_dim": 4}),
    "cohere": Family("Cohere", "parallel blocks, scaled logits", _GROUPED | {"logit_scale": 0.25}),
    "cohere-norms": Family("Cohere", "q/k norms", _GROUPED | {"logit_scale": 0.25, "use_qk_norm": True}),
    "cohere2": Family(
        "Cohere2",
        "windows, layers without rotation",
        _GROUPED | {"head_dim": 8, "logit_scale": 0.25, "sliding_window": 4, "sliding_window_pattern": 2},
    ),
    "deepseek-v2": Family(
        "DeepseekV2",
        "latent attention, experts",
        _SIZES | _MLA | _ROUTED | {"q_lora_rank": None, "first_k_dense_replace": 1},
    ),
    "deepseek-v3": Family(
        "DeepseekV3",
        "latent attention, experts",
        _SIZES | _MLA | _ROUTED | {"q_lora_rank": 16, "first_k_dense_replace": 1},
    ),
    "deepseek-v4": Family(
        "DeepseekV4",
        "several residual streams, compressed attention",
        _SIZES
        | {
            "num_key_value_heads": 1,
            "head_dim": 8,
            "q_lora_rank": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "hc_mult": 2,
            "sliding_window": 4,
            "o_groups": 2,
            "o_lora_rank": 8,
            "index_n_heads": 2,
            "index_head_dim": 8,
            "index_topk": 4,
        },
    ),
    "ernie4.5": Family("Ernie4_5", "rotation of neighbours", _GROUPED | {"head_dim": 8}),
    "ernie4.5-moe": Family(
        "Ernie4_5_Moe", "experts", _GROUPED | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16}
    ),
    "exaone4": Family(
        "Exaone4",
        "norms after attention and MLP, windows, q/k norms",
        _GROUPED | {"sliding_window": 4, "sliding_window_pattern": 2},
    ),
    "falcon-7b": Family(
        "Falcon",
        "multi-query, parallel blocks",
        {**_SIZES, "multi_query": True, "new_decoder_architecture": False, "alibi": False},
    ),
    "falcon-40b": Family(
        "Falcon",
        "the new decoder: grouped queries, two norms",
        {**_SIZES, "num_kv_heads": 2, "new_decoder_architecture": True, "alibi": False},
    ),
    "falcon-alibi": Family(
        "Falcon",
        "ALiBi, biases",
        {
            **_SIZES,
            "multi_query": False,
            "new_decoder_architecture": False,
            "alibi": True,
            "parallel_attn": False,
            "bias": True,
        },
    ),
    "falcon-h1": Family(
        "FalconH1",
        "Mamba next to attention",
        _GROUPED
        | {
            "head_dim": 8,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
        },
    ),
    "falcon-mamba": Family("FalconMamba", "no attention", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "flex-olmo": Family("FlexOlmo", "experts, norms of q and k across heads", _GROUPED | _LOCAL | {"num_experts": 4}),
    "gemma": Family(
        "Gemma",
        "multi-query, scaled embeddings, d_head x heads != d_model",
        _SIZES | {"num_key_value_heads": 1, "head_dim": 16},
    ),
    "gemma2": Family(
        "Gemma2",
        "soft caps, sandwich norms, windows",
        _GROUPED
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 6.0,
            "sliding_window": 4,
        },
    ),
    "gemma3": Family(
        "Gemma3Text",
        "q/k norms, two rotations, windows",
        _GROUPED
        | {
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma4": Family(
        "Gemma4Text",
        "embeddings at every layer",
        _GROUPED
        | {
            "head_dim": 8,
            "global_head_dim": 8,
            "sliding_window": 4,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
        },
    ),
    "glm": Family("Glm", "rotation of half of each head", _GROUPED | {"head_dim": 8}),
    "glm4": Family("Glm4", "sandwich norms", _GROUPED | {"head_dim": 8}),
    "glm4-moe": Family("Glm4Moe", "experts", _GROUPED | _ROUTED | {"head_dim": 8, "first_k_dense_replace": 1}),
    "glm4-moe-lite": Family("Glm4MoeLite", "latent attention", _SIZES | _MLA | _ROUTED | {"q_lora_rank": 16}),
    "glm-moe-dsa": Family(
        "GlmMoeDsa",
        "latent attention to tokens chosen by an index",
        _SIZES
        | _MLA
        | _ROUTED
        | {"q_lora_rank": 16, "index_topk": 4, "index_head_dim": 8, "index_n_heads": 2, "first_k_dense_replace": 1},
    ),
    "gpt-bigcode": Family("GPTBigCode", "multi-query", _GPT | {"multi_query": True}),
    "gpt-bigcode-mha": Family("GPTBigCode", "a key and value for each head", _GPT | {"multi_query": False}),
    "gpt-j": Family("GPTJ", "parallel blocks", _GPT | {"rotary_dim": 4}),
    "gpt-neo": Family(
        "GPTNeo",
        "windows, unscaled attention",
        {
            "hidden_size": 32,
            "num_layers": 4,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 4,
            "max_position_embeddings": 64,
            "intermediate_size": 64,
        },
    ),
    "gpt-neox": Family(
        "GPTNeoX",
        "parallel blocks, rotation of a quarter of each head",
        _SIZES | {"use_parallel_residual": True, "tie_word_embeddings": False},
    ),
    "gpt-neox-sequential": Family(
        "GPTNeoX", "sequential blocks", _SIZES | {"use_parallel_residual": False, "tie_word_embeddings": False}
    ),
    "gpt-oss": Family(
        "GptOss", "attention sinks, experts, windows", _GROUPED | _LOCAL | {"head_dim": 8, "sliding_window": 4}
    ),
    "gpt2": Family("GPT2", "learned positions", _GPT),
    "granite": Family(
        "Granite",
        "multipliers of embedding, attention, residual and logits",
        _GROUPED
        | {"logits_scaling": 8.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    ),
    "granite-moe": Family(
        "GraniteMoe",
        "experts",
        _GROUPED | _LOCAL | {"logits_scaling": 4.0, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    ),
    "granite-hybrid": Family(
        "GraniteMoeHybrid",
        "Mamba layers",
        _GROUPED
        | _SSM
        | {
            "layer_types": ["attention", "mamba", "attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 64,
        },
    ),
    "hrm-text": Family(
        "HrmText", "two stacks of blocks that run in turns", _SIZES | {"head_dim": 8, "num_hidden_layers": 4}
    ),
    "hunyuan": Family("HunYuanDenseV1", "q/k norms after rotation", _GROUPED | {"head_dim": 8}),
    "jais2": Family("Jais2", "squared ReLU, biases", _GROUPED),
    "jamba": Family(
        "Jamba",
        "Mamba layers",
        _GROUPED
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "jetmoe": Family(
        "JetMoe",
        "experts for heads",
        {
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
    ),
    "laguna": Family(
        "Laguna",
        "gated attention, experts",
        _GROUPED | _EXPERTS | {"head_dim": 8, "sliding_window": 4, "shared_expert_intermediate_size": 16},
    ),
    "lfm2": Family("Lfm2", "convolution layers", _GROUPED | {"full_attn_idxs": [1]}),
    "lfm2-moe": Family(
        "Lfm2Moe",
        "convolution layers, experts",
        _GROUPED | _EXPERTS | {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    ),
    "llama": Family("Llama", "grouped queries", _GROUPED),
    "llama-mqa": Family("Llama", "multi-query", _SIZES | {"num_key_value_heads": 1}),
    "llama-wide": Family(
        "Llama",
        "d_head x heads != d_model, biases, own W_U",
        _GROUPED | {"head_dim": 12, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "llama3-rope": Family(
        "Llama",
        "Llama 3's rotation",
        _GROUPED
        | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama-dynamic": Family(
        "Llama",
        "rotations that stretch with the length",
        _GROUPED | {"max_position_embeddings": 16} | _rope("dynamic", factor=2.0),
    ),
    "llama-yarn": Family(
        "Llama", "YaRN rotation", _GROUPED | _rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "llama4": Family(
        "Llama4Text",
        "chunks, experts, layers without rotation",
        _GROUPED
        | {
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 4,
            "no_rope_layers": [1, 0, 1],
        },
    ),
    "mamba": Family("Mamba", "no attention", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "mamba2": Family(
        "Mamba2",
        "no attention",
        {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1},
    ),
    "minimax-m2": Family("MiniMaxM2", "experts, norms of q and k across heads", _GROUPED | _LOCAL | {"head_dim": 8}),
    "ministral3": Family("Ministral3", "queries scaled with the position", _GROUPED | {"head_dim": 8}),
    "mistral": Family("Mistral", "windows", _GROUPED | {"sliding_window": 4}),
    "mixtral": Family("Mixtral", "experts", _GROUPED | _LOCAL),
    "modernbert-decoder": Family("ModernBertDecoder", "windows, a head with a norm", _SIZES | {"local_attention": 4}),
    "mpt": Family("Mpt", "ALiBi", {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 64}),
    "nanochat": Family("NanoChat", "norms without weights, soft cap", _GROUPED | {"head_dim": 8}),
    "nemotron": Family("Nemotron", "squared ReLU, norms that add 1", _GROUPED | {"head_dim": 8}),
    "nemotron-h": Family(
        "NemotronH",
        "Mamba layers",
        _GROUPED
        | {
            "head_dim": 8,
            "layers_block_type": ["mamba", "attention", "mlp"],
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 1,
            "use_mamba_kernels": False,
        },
    ),
    "olmo": Family("Olmo", "norms without weights, clipped q, k, v", _GROUPED | {"clip_qkv": 1.0}),
    "olmo2": Family("Olmo2", "norms after attention and MLP, norms of q and k across heads", _GROUPED),
    "olmo2-mha": Family("Olmo2", "a key and value for each head", _SIZES),
    "olmo3": Family("Olmo3", "windows", _GROUPED | {"sliding_window": 4, "num_hidden_layers": 4}),
    "olmo-hybrid": Family(
        "OlmoHybrid",
        "linear attention layers",
        _GROUPED
        | {
            "num_hidden_layers": 4,
            "linear_num_key_heads": 4,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "olmoe": Family("Olmoe", "experts", _GROUPED | {"num_experts": 4, "num_experts_per_tok": 2}),
    "openai-gpt": Family("OpenAIGPT", "norms after attention and MLP", _GPT),
    "opt": Family(
        "OPT",
        "learned positions, biases",
        {
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "phi": Family("Phi", "parallel blocks, rotation of half of each head, biases in the unembedding", _GROUPED),
    "phi3": Family("Phi3", "fused q, k and v", _GROUPED),
    "phi3-longrope": Family("Phi3", "rotations that differ for long texts", _GROUPED | _LONG),
    "phimoe": Family("Phimoe", "experts", _GROUPED | _LOCAL),
    "qwen2": Family("Qwen2", "biases of q, k, v", _GROUPED),
    "qwen2-windows": Family(
        "Qwen2",
        "windows in some layers",
        _GROUPED | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen2-moe": Family(
        "Qwen2Moe", "experts, one shared", _GROUPED | _EXPERTS | {"shared_expert_intermediate_size": 32}
    ),
    "qwen3": Family(
        "Qwen3", "q/k norms, d_head x heads != d_model", _GROUPED | {"head_dim": 12, "tie_word_embeddings": False}
    ),
    "qwen3-moe": Family("Qwen3Moe", "experts", _GROUPED | _EXPERTS | {"head_dim": 8}),
    "qwen3-next": Family(
        "Qwen3Next",
        "linear attention layers",
        _GROUPED | _EXPERTS | _LINEAR | {"num_hidden_layers": 4, "head_dim": 8, "shared_expert_intermediate_size": 16},
    ),
    "qwen3.5": Family(
        "Qwen3_5Text", "linear attention layers", _GROUPED | _LINEAR | {"num_hidden_layers": 4, "head_dim": 8}
    ),
    "qwen3.5-moe": Family(
        "Qwen3_5MoeText",
        "linear attention layers, experts",
        _GROUPED | _EXPERTS | _LINEAR | {"num_hidden_layers": 4, "head_dim": 8, "shared_expert_intermediate_size": 16},
    ),
    "recurrent-gemma": Family("RecurrentGemma", "recurrent layers", _GROUPED | {"attention_window_size": 8}),
    "rwkv": Family(
        "Rwkv",
        "no attention",
        {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 64},
    ),
    "seed-oss": Family("SeedOss", "biases of q, k, v", _GROUPED | {"head_dim": 8}),
    "smollm3": Family("SmolLM3", "layers without rotation", _GROUPED | {"no_rope_layers": [1, 0, 1]}),
    "stablelm": Family("StableLm", "rotation of a quarter of each head", _GROUPED),
    "stablelm-parallel": Family(
        "StableLm", "parallel blocks, q/k norms", _GROUPED | {"use_parallel_residual": True, "qk_layernorm": True}
    ),
    "starcoder2": Family("Starcoder2", "biases, windows", _GROUPED | {"sliding_window": 4}),
    "vaultgemma": Family(
        "VaultGemma",
        "windows, a key and value for each head",
        _SIZES | {"num_key_value_heads": 4, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4},
    ),
    "xglm": Family(
        "XGLM",
        "sinusoidal positions",
        {"d_model": 32, "ffn_dim": 64, "num_layers": 3, "attention_heads": 4, "max_position_embeddings": 64},
        double=False,
    ),
    "youtu": Family("Youtu", "latent attention", _SIZES | _MLA | {"q_lora_rank": 16}),
    "zamba2": Family(
        "Zamba2",
        "Mamba layers, shared attention",
        _SIZES
        | {
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_hidden_layers": 4,
            "n_mamba_heads": 8,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
    ),
}

NOT_TRIED: dict[str, str] = {
    "BertLMHeadModel": "an encoder; attention is not causal",
    "Gemma3ForConditionalGeneration": "takes images; its language model is Gemma3ForCausalLM",
    "Gemma3nForConditionalGeneration": "takes images and audio",
    "Gemma4ForConditionalGeneration": "takes images; its language model is Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "takes images and audio",
}
"""Architectures that both libraries know and that have no tiny model here."""


REFUSED = frozenset(
    [
        "bamba",
        "bitnet",
        "codegen",
        "deepseek-v2",
        "deepseek-v3",
        "deepseek-v4",
        "falcon-40b",
        "falcon-h1",
        "falcon-mamba",
        "gemma4",
        "glm4-moe-lite",
        "glm-moe-dsa",
        "gpt-bigcode-mha",
        "granite-hybrid",
        "hrm-text",
        "jamba",
        "jetmoe",
        "lfm2",
        "lfm2-moe",
        "mamba",
        "mamba2",
        "modernbert-decoder",
        "nemotron-h",
        "olmo-hybrid",
        "openai-gpt",
        "phimoe",
        "qwen3-next",
        "qwen3.5",
        "qwen3.5-moe",
        "recurrent-gemma",
        "rwkv",
        "youtu",
        "zamba2",
    ]
)
"""Those that mechheads refuses when they are loaded, on TransformerLens 4.3."""


def build(name: str, folder: Path) -> None:
    """Save the tiny model of that name, and a tokenizer, in a folder."""
    config = FAMILIES[name].config()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(sum(name.encode()))
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                wide = 2.0 if parameter.shape[0] == config.get_text_config().vocab_size else 1.2
                parameter.normal_(0.0, wide * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level tokenizer in which each of ``WORDS`` is one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f" {word}" for word in WORDS], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
