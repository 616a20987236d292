"""A Llama that does nothing, to write weights into by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

import mechheads as mh
from support import tiny as tiny_models

BIG = 15
"""The coordinate of the residual stream that only the norms read."""


class Blank:
    """Two layers of four heads that share two key/value heads, d_head 4, no MLP, no positions: all weights are 0.

    The norm divides by the root of the mean square. The coordinate BIG is 2^20 for every token and so is all that
    counts: the root of 2^40 / 16 is 2^18. The norm's weight of 2^18 puts that back, and the norm gives out what it is
    given.
    Rotation would turn queries and keys by their position. Coordinate 1 of the 4 in a head turns by theta^(-1/2)
    radians a token: with theta = 10^12 that is nothing, so queries and keys live there.
    """

    def __init__(self) -> None:
        self.tokenizer = tiny_models.make_tokenizer(begins=False)
        config = transformers.LlamaConfig(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=16,
            rope_parameters={"rope_type": "default", "rope_theta": 1e12},
            tie_word_embeddings=False,
            **tiny_models.vocabulary_of(self.tokenizer),
        )
        self.model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.fill_(2.0**18 if "norm" in name else 0.0)
            self.embedding[:, BIG] = 2.0**20

    @property
    def embedding(self) -> torch.Tensor:
        return self.model.model.embed_tokens.weight

    @property
    def unembedding(self) -> torch.Tensor:
        return self.model.lm_head.weight

    @property
    def attention(self) -> list[Any]:
        """The attention of each layer; matrices are [out, in], and head h has rows or columns 4 h to 4 h + 3."""
        return [layer.self_attn for layer in self.model.model.layers]

    def token(self, text: str) -> int:
        """The only token of a word."""
        (only,) = self.tokenizer(text).input_ids
        return only

    def load(self, folder: Path) -> mh.Model:
        """Save the model in a folder, and load it from there."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return mh.load(folder)
