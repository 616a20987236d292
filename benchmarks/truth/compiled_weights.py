"""Make the compiled models of ``mechheads/data/known``: ``python -m benchmarks.truth.compiled_weights``.

What a compiler gave is read from ``compiled`` and written into a GPT-2 or a Phi-3 with four heads in each layer. Which
head is which is random; ``mechheads.testing.known`` describes the rest. A token that is no word of the program is read
as one of its words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import default_rng
from safetensors import safe_open

from benchmarks.truth.files import KNOWN, N_TEXTS, draw_pairs, write_known
from benchmarks.truth.planted import Matrix, blank_gpt2
from benchmarks.truth.programs import LONGEST, PROGRAMS
from mechheads.heads import HeadId
from mechheads.testing.known import word_tokenizer

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, Phi3ForCausalLM, PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "compiled"
N_HEADS = 4
_SCALE = 1e6
"""Of the norms: with its square as epsilon, no activation changes what they divide by."""
_LOGIT = 20.0
_FREE, _IDLE_SIZE = 8, 1.2
"""How many directions only idle heads write to, at least, and the size of their W_Q and W_K."""


@dataclass(frozen=True)
class Compiled:
    """The content of a file of ``compile_programs.py`` or ``compile_phi3.py``.

    Attributes:
        program: the text of the program.
        words, answers: the words of a text, and the values of the program.
        layers: for each layer, the variables of its heads.
        matrices: the weights by name, such as ``"embedding"``, ``"0.bar.query"`` and ``"0.mlp.1"``. The first row of
            the embedding begins a text; one row for each word follows. Of a Phi-3, by their names in transformers.
        config: of a Phi-3; otherwise empty.
        free: the first direction of the residual stream of a Phi-3 that nothing reads.
    """

    program: str
    words: tuple[str, ...]
    answers: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    matrices: Mapping[str, Matrix]
    config: Mapping[str, Any]
    free: int

    @classmethod
    def read(cls, path: Path) -> Compiled:
        """Read a file. Matrices are stored as the places and values of their entries that are not zero."""
        with safe_open(path, "np") as file:
            texts = file.metadata()
            about = json.loads(texts["about"])
            matrices = {}
            for name, shape in about["shapes"].items():
                matrices[name] = np.zeros(shape)
                matrices[name][tuple(file.get_tensor(f"{name}.at").T)] = file.get_tensor(f"{name}.value")
        n_layers = 1 + max(int(found[0]) for name in matrices if (found := re.search(r"\d+", name)))
        layers = tuple(tuple(head for at, head in about["heads"] if at == layer) for layer in range(n_layers))
        words, answers = tuple(about["words"]), tuple(about["answers"])
        return cls(texts["program"], words, answers, layers, matrices, about.get("config", {}), about.get("free", 0))

    @property
    def n_positions(self) -> int:
        return self.config["max_position_embeddings"] if self.config else len(self.matrices["positions"])


def as_gpt2(
    compiled: Compiled, tokenizer: PreTrainedTokenizerFast, heads: Mapping[HeadId, str], seed: int
) -> GPT2LMHeadModel:
    """A GPT-2 that computes what a compiled model does.

    Args:
        heads: the variable of each head that is used.
        seed: for the weights of all other heads.
    """
    matrices, n_layers, n_heads = compiled.matrices, len(compiled.layers), N_HEADS
    n_positions, inner = matrices["positions"].shape
    d_key = next(matrix.shape[1] for name, matrix in matrices.items() if name.endswith(".query"))
    d_head = -(-max(n_heads * d_key, inner + 1 + _FREE, matrices["0.mlp.1"].shape[1] // 4 + 1) // n_heads)
    gpt2 = blank_gpt2(
        n_layers,
        n_heads,
        n_heads * d_head,
        vocab_size=len(tokenizer),
        n_positions=n_positions,
        activation_function="relu",
        layer_norm_epsilon=_SCALE**2,
    )
    weights = {name: parameter.detach().numpy() for name, parameter in gpt2.named_parameters()}
    for name, weight in weights.items():
        if ".ln_" in name and name.endswith("weight"):
            weight[:] = _SCALE
    words = [tokenizer.bos_token_id, *(tokenizer.vocab[f"▁{word}"] for word in compiled.words)]
    answers = [tokenizer.vocab[f"▁{answer}"] for answer in compiled.answers]
    reads = 1 + np.arange(len(tokenizer)) % len(compiled.words)  # also of tokens that are no words of the program
    reads[words] = np.arange(len(words))
    weights["transformer.wte.weight"][:, : inner + 1] = _balanced(matrices["embedding"][reads])
    weights["transformer.wpe.weight"][:, : inner + 1] = _balanced(matrices["positions"])
    weights["lm_head.weight"][answers, :inner] = _LOGIT * matrices["unembedding"].T
    for layer, number in np.ndindex(n_layers, n_heads):
        block, head, own = (
            f"transformer.h.{layer}.attn",
            HeadId(layer, number),
            slice(number * d_head, (number + 1) * d_head),
        )
        query, key, value = np.split(weights[f"{block}.c_attn.weight"], 3, axis=1)
        output = weights[f"{block}.c_proj.weight"][own]
        if head in heads:
            parts = [matrices[f"{layer}.{heads[head]}.{part}"] for part in ("query", "key", "value", "output")]
            query[:inner, own][:, :d_key] = parts[0] * np.sqrt(d_head / d_key)
            key[:inner, own][:, :d_key], value[:inner, own][:, :d_key] = parts[1:3]
            output[:d_key, : inner + 1] = _balanced(parts[3])
        else:
            rng = default_rng([seed, 1, layer, number])
            query[:inner, own], key[:inner, own] = rng.normal(0, _IDLE_SIZE, (2, inner, d_head))
            value[:inner, own] = rng.normal(0, inner**-0.5, (inner, d_head))
            output[:, inner + 1 :] = _balanced(rng.normal(0, d_head**-0.5, (d_head, output.shape[1] - inner - 2)))
    for layer in range(n_layers):
        read, write = (matrices[f"{layer}.mlp.{i}"] for i in (1, 2))
        weights[f"transformer.h.{layer}.mlp.c_fc.weight"][:inner, : read.shape[1]] = read
        weights[f"transformer.h.{layer}.mlp.c_proj.weight"][: len(write), : inner + 1] = _balanced(write)
    return gpt2


def as_phi3(
    compiled: Compiled, tokenizer: PreTrainedTokenizerFast, heads: Mapping[HeadId, str], seed: int
) -> Phi3ForCausalLM:
    """A Phi-3 with the weights of a compiled one; arguments as for ``as_gpt2``."""
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM

    matrices, d_head, n_heads = compiled.matrices, compiled.config["head_dim"], N_HEADS
    stored = len(matrices["model.layers.0.self_attn.o_proj.weight"].T) // d_head
    counts = {"num_attention_heads": n_heads, "num_key_value_heads": n_heads, "vocab_size": len(tokenizer)}
    config = Phi3Config(**{**compiled.config, **counts, "pad_token_id": tokenizer.pad_token_id})
    phi3 = Phi3ForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    weights = {name: parameter.detach().numpy() for name, parameter in phi3.named_parameters()}
    for name, weight in weights.items():
        weight[:] = 0 if "self_attn" in name or "embed" in name else matrices[name]
    weights["model.norm.weight"][:] *= _LOGIT
    tokens = [tokenizer.bos_token_id, tokenizer.eos_token_id, *(tokenizer.vocab[f"▁{word}"] for word in compiled.words)]
    weights["model.embed_tokens.weight"][tokens] = matrices["model.embed_tokens.weight"][: len(tokens)]
    for layer, number in np.ndindex(len(compiled.layers), n_heads):
        block, head = f"model.layers.{layer}.self_attn", HeadId(layer, number)
        qkv = weights[f"{block}.qkv_proj.weight"].reshape(3, n_heads, d_head, -1)[:, number]
        output = weights[f"{block}.o_proj.weight"][:, number * d_head : (number + 1) * d_head]
        if head in heads:
            at = compiled.layers[layer].index(heads[head])
            qkv[:] = matrices[f"{block}.qkv_proj.weight"].reshape(3, stored, d_head, -1)[:, at]
            output[:] = matrices[f"{block}.o_proj.weight"][:, at * d_head : (at + 1) * d_head]
        else:
            rng, free = default_rng([seed, 1, layer, number]), slice(compiled.free, compiled.free + _FREE)
            qkv[:2, :, : compiled.free] = rng.normal(0, _IDLE_SIZE, (2, d_head, compiled.free))
            qkv[2, :, : compiled.free] = rng.normal(0, compiled.free**-0.5, (d_head, compiled.free))
            output[free] = rng.normal(0, d_head**-0.5, (_FREE, d_head))
    return phi3


def make_file(name: str, folder: Path = KNOWN, seed: int = 0) -> None:
    """Make one model, and write its file."""
    compiled, program = Compiled.read(FOLDER / f"{name}.safetensors"), PROGRAMS[name]
    variables = {
        HeadId(layer, int(number)): variable
        for layer, of in enumerate(compiled.layers)
        for number, variable in zip(default_rng([seed, 0, layer]).permutation(N_HEADS), of, strict=False)
    }
    new = [answer for answer in compiled.answers if answer not in compiled.words]
    tokenizer = word_tokenizer([*compiled.words, *new], name, compiled.n_positions)
    made = (as_phi3 if compiled.config else as_gpt2)(compiled, tokenizer, variables, seed)
    known = {head.name: head for head in program.heads}
    nodes = {str(head): known[variable] for head, variable in variables.items() if variable in known}
    texts = [" ".join(row) for row in default_rng(seed).choice(compiled.words, (N_TEXTS, LONGEST))]
    pairs = draw_pairs(program.draw, lambda words: program.run(words)[-1])
    write_known(folder / f"compiled-{name}.npz", made, tokenizer, nodes, compiled.program, texts, pairs)


def _balanced(rows: Matrix) -> Matrix:
    """The rows with one more entry, which brings their mean to zero."""
    return np.column_stack([rows, -rows.sum(1)])


if __name__ == "__main__":
    for name in PROGRAMS:
        make_file(name)
