"""A tiny model as a GGUF file, and what is read from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from mechheads.model.sources.load import Pretrained, load_pretrained


def load(name_or_path: str | Path | None, **changes: Any) -> Pretrained:
    """What ``mh.load`` reads of a model, in float32 on the CPU, without code of its own."""
    options: dict[str, Any] = {"revision": None, "dtype": torch.float32, "device": "cpu"}
    return load_pretrained(name_or_path, **(options | changes))


def write_gguf(
    folder: Path,
    path: Path,
    embedding_length: int | None = None,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> None:
    """Write a saved tiny llama or phi3, with more keys and tensors, as GGUF in llama's order of the rows of q and k."""
    config = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(path, config["model_type"])
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (keys or {}).items():
        add[type(value)](key, value)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, np.array(values, dtype=np.float32))
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(embedding_length or config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    vocabulary = sorted(tokens["vocab"], key=tokens["vocab"].__getitem__)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3 if token.startswith("<") and len(token) > 2 else 1 for token in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokens["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
    }
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
