"""The recipes of the papers' figures over random models of the papers' shapes: ``python -m benchmarks.recipes``.

Each model of a recipe is made with the sizes of the paper's model and random weights, but with few layers, so that it
fits in memory. The default model's tokenizer is cut to the first tokens of the vocabulary. The recipe then runs as a
first look (``--quick``) over these models, in place of the paper's. What is found in random weights says nothing; that
every panel is drawn says that the recipe can be run with models of these shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.machine import PeakMemory
from mechheads.data import names
from mechheads.model.sources import default_folder
from mechheads.studies import load_recipe, recipe_figure


@dataclass(frozen=True)
class Shape:
    """The sizes of one of a paper's models; ``config`` is its configuration in transformers, without ``Config``."""

    config: str
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    vocab: int


_LLAMA_2 = Shape("Llama", heads=32, kv_heads=32, d_head=128, d_model=4096, d_mlp=11008, vocab=32000)
_LLAMA_3B = Shape("Llama", heads=24, kv_heads=8, d_head=128, d_model=3072, d_mlp=8192, vocab=128256)
SHAPES = {
    "openai-community/gpt2-xl": Shape("GPT2", heads=25, kv_heads=25, d_head=64, d_model=1600, d_mlp=6400, vocab=50257),
    "microsoft/phi-2": Shape("Phi", heads=32, kv_heads=32, d_head=80, d_model=2560, d_mlp=10240, vocab=51200),
    "EleutherAI/pythia-12b": Shape(
        "GPTNeoX", heads=40, kv_heads=40, d_head=128, d_model=5120, d_mlp=20480, vocab=50688
    ),
    "meta-llama/Llama-3.1-70B": Shape(
        "Llama", heads=64, kv_heads=8, d_head=128, d_model=8192, d_mlp=28672, vocab=128256
    ),
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA_2,
    "lmsys/vicuna-7b-v1.5": _LLAMA_2,
    "meta-llama/Llama-3.2-1B": Shape("Llama", heads=32, kv_heads=8, d_head=64, d_model=2048, d_mlp=8192, vocab=128256),
    "meta-llama/Llama-3.2-3B": _LLAMA_3B,
    "meta-llama/Llama-3.2-3B-Instruct": _LLAMA_3B,
    "meta-llama/Llama-3.1-8B": Shape(
        "Llama", heads=32, kv_heads=8, d_head=128, d_model=4096, d_mlp=14336, vocab=128256
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recipes", description=__doc__)
    parser.add_argument("recipes", nargs="*", choices=[*names("recipes"), []], default=names("recipes"))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--data", nargs="*", help="data sets in place of the recipe's, such as files of requests")
    parser.add_argument("--out", type=Path, default=Path("recipes"))
    args = parser.parse_args()
    for name in args.recipes:
        print(run(name, args.layers, args.data, args.out / name), flush=True)


def run(recipe: str, layers: int, data: list[str] | None, out: Path) -> str:
    """Run a recipe over random models of its shapes, and say what came of it."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as place:
        models = [
            random_model(Path(place) / name.rpartition("/")[2], SHAPES[name], layers)
            for name in load_recipe(recipe).models
        ]
        start = time.perf_counter()
        with PeakMemory("cpu") as memory:
            made = recipe_figure(recipe, models, data=data, out=out, quick=True)
    print("\n".join(made.lines), file=sys.stderr)
    failed = [line for line in made.lines if " left out: " in line]
    return (
        f"{recipe}: {len(models)} models of {layers} layers, {time.perf_counter() - start:.0f} s, peak "
        f"{memory.peak / 2**30:.1f} GB; {'; '.join(failed) or 'every panel is drawn'}"
    )


def random_model(folder: Path, shape: Shape, layers: int) -> Path:
    """A folder with a random model of this shape, in bfloat16, and a tokenizer."""
    config = getattr(transformers, f"{shape.config}Config")(**sizes(shape, layers))
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = transformers.AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(before)
    model.save_pretrained(folder)
    cut_tokenizer(folder, shape.vocab)
    return folder


def sizes(shape: Shape, layers: int) -> dict[str, Any]:
    """The settings of a configuration."""
    if shape.config == "GPT2":
        asked = {"n_embd": shape.d_model, "n_layer": layers, "n_head": shape.heads}
    else:
        asked = {
            "hidden_size": shape.d_model,
            "num_hidden_layers": layers,
            "num_attention_heads": shape.heads,
            "intermediate_size": shape.d_mlp,
        }
    if shape.config == "Llama":
        asked |= {"num_key_value_heads": shape.kv_heads, "head_dim": shape.d_head}
    return asked | {"vocab_size": shape.vocab, "bos_token_id": 0, "eos_token_id": 0}


def cut_tokenizer(folder: Path, size: int) -> None:
    """The default model's tokenizer with only its first tokens; ids follow the order of merges, so it stays whole."""
    source = default_folder()
    for file in ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (source / file).is_file():
            shutil.copy(source / file, folder / file)
    content = json.loads((source / "tokenizer.json").read_text("utf-8"))
    model = content["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < size}
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    model["merges"] = [pair for pair in pairs if "".join(pair) in model["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")


if __name__ == "__main__":
    main()
