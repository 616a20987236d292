"""Relation scores of a model too large to load: ``python -m benchmarks.shards``.

Bfloat16 shards in the shape of Llama-3.1-70B are written to a temporary folder (9 GB): embeddings, unembedding and a
few layers, with random numbers in the weights that static scores read. Made-up relations are scored on them with
``mh.labels.open_weights``, once on one layer and once on all written layers, and the cost of all 80 layers is projected
from the difference. Shards that were just written are read from the page cache, not from the disk. Random heads
implement no relation, so samples of the vocabulary rule out nearly all pairs; the cost without samples is given too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.flop_counter import FlopCounterMode

import mechheads as mh
from benchmarks import machine
from mechheads.labels.relations import Relation
from mechheads.labels.static import relation_scores
from mechheads.model.stored_weights import StoredWeights, open_weights

LIMIT = 6e9
"""The largest memory in bytes that is allowed at full size."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama model."""

    n_layers: int = 80
    n_heads: int = 64
    n_kv_heads: int = 8
    d_model: int = 8192
    d_mlp: int = 28672
    d_vocab: int = 128256


LLAMA_70B = Shape()
TINY = Shape(n_layers=8, n_heads=8, n_kv_heads=2, d_model=64, d_mlp=160, d_vocab=3000)


@dataclass(frozen=True)
class Cost:
    """The cost of scores: bytes of tensors that are read, FLOPs of matrix products, seconds."""

    bytes_read: float
    flops: float
    seconds: float

    def plus(self, other: Cost, times: float) -> Cost:
        return Cost(
            self.bytes_read + times * other.bytes_read,
            self.flops + times * other.flops,
            self.seconds + times * other.seconds,
        )


@mh.settings(progress=False)
def main() -> None:
    args = _arguments()
    shape = TINY if args.quick else LLAMA_70B
    relations = made_up(args.relations, args.pairs, shape.d_vocab)
    with tempfile.TemporaryDirectory(prefix="mechheads") as path:
        folder = Path(path)
        print(f"writing {args.layers} of {shape.n_layers} layers to {folder}", file=sys.stderr, flush=True)
        write_shards(folder, shape, args.layers)
        write_tokenizer(folder, shape)
        level = machine.memory_level("cpu")
        one, _ = measure(folder, shape, 1, relations)
        some, peak = measure(folder, shape, args.layers, relations)
    layer = Cost(0, 0, 0).plus(some.plus(one, -1), 1 / (args.layers - 1))
    rows = {
        "before the layers": one.plus(layer, -1),
        f"{args.layers} layers, measured": some,
        f"{shape.n_layers} layers, projected": one.plus(layer, shape.n_layers - 1),
    }
    speed = max(machine.matmul_speed("cpu").values())
    n_sources = len({source for relation in relations for source, _ in relation.pairs})
    every_entry = 2.0 * shape.n_layers * shape.n_heads * n_sources * shape.d_model * shape.d_vocab
    n_pairs = args.relations * args.pairs
    print(f"{shape}\n{n_pairs} pairs of {n_sources} sources; {machine.description('cpu')}\n")
    print("| | bytes read | FLOPs | seconds | seconds of matrix products alone |\n|---|---|---|---|---|")
    for name, cost in rows.items():
        print(f"| {name} | {_gb(cost.bytes_read)} | {cost.flops:.3g} | {cost.seconds:.1f} | {cost.flops / speed:.1f} |")
    print(
        f"\nmatrix products: {speed / 1e9:.1f} GFLOP/s. Without samples: {every_entry:.3g} FLOPs, "
        f"{every_entry / speed / 3600:.1f} hours.\n"
        f"memory: {_gb(peak)} at most, of which {_gb(level)} were in use before."
    )
    if peak > LIMIT:
        sys.exit(f"the peak memory is above the limit of {_gb(LIMIT)}")


def measure(folder: Path, shape: Shape, layers: int, relations: list[Relation]) -> tuple[Cost, int]:
    """The cost of opening and scoring this many layers, and the peak memory."""
    write_config(folder, shape, layers)

    def scored() -> StoredWeights:
        weights = open_weights(folder)
        relation_scores(weights, relations)
        return weights

    with FlopCounterMode(display=False) as counter:
        done = machine.measured(scored, "cpu")
    return Cost(done.result.bytes_read, counter.get_total_flops(), done.seconds), done.peak


def made_up(n_relations: int, n_pairs: int, d_vocab: int) -> list[Relation]:
    """Relations between random tokens."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(1, d_vocab, size=(n_relations, n_pairs, 2)).tolist()
    return [
        Relation(f"made up {index}", None, [(f"w{source}", f"w{target}") for source, target in pairs])
        for index, pairs in enumerate(drawn)
    ]


def write_config(folder: Path, shape: Shape, layers: int) -> None:
    """Write the config of a model with this many layers."""
    transformers.LlamaConfig(
        vocab_size=shape.d_vocab,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_mlp,
        num_hidden_layers=layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        tie_word_embeddings=False,
    ).save_pretrained(folder)


def write_tokenizer(folder: Path, shape: Shape) -> None:
    """Write a tokenizer in which w0, w1, ... are one token each."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.d_vocab)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)


def write_shards(folder: Path, shape: Shape, layers: int) -> None:
    """Write a shard for each layer and two more: random numbers for what static scores read, zeros for the rest."""
    values = shape.n_kv_heads * shape.d_model // shape.n_heads
    vocabulary, square = (shape.d_vocab, shape.d_model), (shape.d_model, shape.d_model)
    wide, norm = (shape.d_mlp, shape.d_model), (shape.d_model,)
    read = {"input_layernorm": norm, "self_attn.v_proj": (values, shape.d_model), "self_attn.o_proj": square}
    mlp = {"mlp.gate_proj": wide, "mlp.up_proj": wide, "mlp.down_proj": wide[::-1], "post_attention_layernorm": norm}
    others = {"self_attn.q_proj": square, "self_attn.k_proj": (values, shape.d_model)}
    shards = {
        "embedding.safetensors": {"model.embed_tokens.weight": vocabulary},
        "unembedding.safetensors": {"lm_head.weight": vocabulary, "model.norm.weight": norm},
    } | {
        f"layer_{layer}.safetensors": {
            f"model.layers.{layer}.{name}.weight": size for name, size in (read | mlp | others).items()
        }
        for layer in range(layers)
    }
    never_read = {
        f"model.layers.{layer}.{name}.weight" for layer in range(layers) for name in others | (mlp if layer else {})
    }
    generator = torch.Generator().manual_seed(0)
    for file, tensors in shards.items():
        made = {
            name: torch.zeros(size, dtype=torch.bfloat16) if name in never_read else _random(size, generator)
            for name, size in tensors.items()
        }
        save_file(made, folder / file)
    places = {tensor: file for file, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _random(size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    centre = 1.0 if len(size) == 1 else 0.0
    return torch.empty(size, dtype=torch.bfloat16).normal_(centre, size[-1] ** -0.5, generator=generator)


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=3, help="number of layers to write and score")
    parser.add_argument("--relations", type=int, default=5, help="number of relations")
    parser.add_argument("--pairs", type=int, default=60, help="pairs of each relation, at least 30")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    args = parser.parse_args()
    if args.layers < 2 or args.relations < 1 or args.pairs < 30:
        parser.error("--layers must be at least 2, --relations at least 1, --pairs at least 30")
    return args


if __name__ == "__main__":
    main()
