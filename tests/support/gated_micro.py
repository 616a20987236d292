"""A model with weights set by hand in which one head is needed, one hurts, and the others do nothing.

Two layers of four heads, no MLP, no positions, and a norm that changes nothing (as in ``test_micro.py``). No head has
queries or keys, so each looks everywhere alike. A prompt is " the", a country and " is": three tokens, so that at its
end every z is a third of the country's value.

    L0H1 writes 24 z to the logit of the country's capital:   +8
    L1H2 writes -12 z to the same:                            -4
    L1H0 writes 24 z where nothing reads it; the other heads write nothing.

With gates g and h on the first two, and V tokens, the capital has the logit s = 8 g - 4 h and all others 0, so

    log p = s - log(e^s + V - 1),        d log p / d g = 8 (1 - p),        d log p / d h = -4 (1 - p)
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import transformers

import mechheads as mh
from mechheads.gating import Task
from support import tiny as tiny_models

CAPITALS = {" France": " Paris", " Italy": " Rome", " Spain": " Madrid", " Germany": " Berlin"}
NEEDED, HURTS = (0, 1), (1, 2)
DEAD = [(layer, head) for layer in range(2) for head in range(4) if (layer, head) not in (NEEDED, HURTS)]
UNREAD, BIG = 14, 15


@torch.no_grad()
def build(folder: Path) -> mh.Model:
    """Save the model above, as a Llama, and load it."""
    tokenizer = tiny_models.make_tokenizer(begins=False)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.fill_(2.0**18 if "norm" in name else 0.0)
    embedding, unembedding = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[:, BIG] = 2.0**20
    first, second = (layer.self_attn for layer in model.model.layers)
    for i, (country, capital) in enumerate(CAPITALS.items()):
        embedding[tokenizer(country).input_ids[0], i] = 1
        unembedding[tokenizer(capital).input_ids[0], 4 + i] = 1
        first.v_proj.weight[i, i] = 1  # key/value head 0: query heads 0 and 1
        first.o_proj.weight[4 + i, 4 * 1 + i] = 24
        second.v_proj.weight[i, i] = 1
        second.v_proj.weight[4 + i, i] = 1  # key/value head 1: query heads 2 and 3
        second.o_proj.weight[4 + i, 4 * 2 + i] = -12
        second.o_proj.weight[UNREAD, 4 * 0 + i] = 24
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return mh.load(folder)


def capitals() -> Task:
    """Each country's capital."""
    return Task([f" the{country} is" for country in CAPITALS], list(CAPITALS.values()), name="capitals")


def log_p(model: mh.Model, g: float, h: float) -> float:
    """What the targets get under gates g and h, on paper."""
    s = 8 * g - 4 * h
    return s - math.log(math.exp(s) + model.d_vocab - 1)
