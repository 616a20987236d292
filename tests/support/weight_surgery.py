"""Copies of the tiny models as transformers loads them, the weights of some heads scaled: no hook, no code of ours.

What the safety-head paper does: W_q, W_k or W_v of a head, and its bias, times epsilon.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor

import mechheads as mh

Which = Literal["q", "k", "v"]


def load(folder: Path) -> Any:
    """The model of a folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def separate(folder: Path) -> Any:
    """The same function without grouped queries: each query head has a copy of the keys and values it reads."""
    grouped = load(folder)
    config = copy.deepcopy(grouped.config)
    times = config.num_attention_heads // config.num_key_value_heads
    config.num_key_value_heads = config.num_attention_heads
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    state = grouped.state_dict()
    for name, weight in state.items():
        if ".k_proj." in name or ".v_proj." in name:
            size = config.head_dim
            state[name] = weight.unflatten(0, (-1, size)).repeat_interleave(times, 0).flatten(0, 1)
    model.load_state_dict(state)
    return model.eval()


@torch.no_grad()
def scale(model: Any, heads: Iterable[mh.HeadId], which: Which, epsilon: float) -> Any:
    """Scale W_q, W_k or W_v of heads, and their biases, in place; for k and v these are key/value heads."""
    for head in heads:
        for part in _parts(model, head.layer, head.head, which):
            part *= epsilon
    return model


def _parts(model: Any, layer: int, head: int, which: Which) -> Iterator[Tensor]:
    """Views of the weight and the bias."""
    config, number = model.config, "qkv".index(which)
    if config.model_type == "gpt2":
        size, attention = config.n_embd // config.n_head, model.transformer.h[layer].attn
        mine = slice(number * config.n_embd + head * size, number * config.n_embd + (head + 1) * size)
        yield attention.c_attn.weight[:, mine]
        yield attention.c_attn.bias[mine]
    elif config.model_type == "gpt_neox":
        size, attention = config.hidden_size // config.num_attention_heads, model.gpt_neox.layers[layer].attention
        mine = slice((3 * head + number) * size, (3 * head + number + 1) * size)
        yield attention.query_key_value.weight[mine]
        yield attention.query_key_value.bias[mine]
    else:
        attention = model.model.layers[layer].self_attn
        size = attention.head_dim
        yield getattr(attention, f"{which}_proj").weight[head * size : (head + 1) * size]


def logits(model: Any, ids: Tensor) -> Tensor:
    """Logits [pos, d_vocab] of one prompt [1, pos]."""
    with torch.no_grad():
        return model(ids).logits[0].float()


def state(model: Any, ids: Tensor) -> Tensor:
    """The last token's state after the final norm [d_model]."""
    with torch.no_grad():
        return model.base_model(ids).last_hidden_state[0, -1].float()


def write_on(model: Any, ids: Tensor, ends: Iterable[int], new: int) -> list[int]:
    """What the model writes, greedily, a full forward pass for each token."""
    ends, written = set(ends), []
    while len(written) < new:
        row = torch.cat([ids[0], torch.tensor(written, dtype=torch.long)])[None]
        token = int(logits(model, row)[-1].argmax())
        if token in ends:
            break
        written.append(token)
    return written


def rows(model: mh.Model, prompts: Any) -> list[Tensor]:
    """Each prompt without its padding, [1, pos]."""
    tokens = (prompts if isinstance(prompts, mh.Prompts) else mh.Prompts(prompts)).tokens(model)
    return [tokens.ids[i : i + 1, : int(tokens.lengths[i])] for i in range(len(tokens))]
