"""Compile a program to a Phi-3 in ``compiled``, from which ``compiled_weights.py`` makes a model.

It needs torchwright, which the package does not: ``pip install "torchwright[hf]==0.2.0"`` in an environment of its own,
then ``python benchmarks/truth/compile_phi3.py``. torchwright (Porter 2026) has the Apache licence, version 2.0; its
weights follow from the program alone. Which head computes what is read from the schedule that it writes with them.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from torchwright import compile_hf_bundle  # pyright: ignore[reportMissingImports]
from torchwright.ops.attention_ops import (  # pyright: ignore[reportMissingImports]
    attend_argmax_dot,
    attend_to_offset,
)
from torchwright.ops.inout_nodes import (  # pyright: ignore[reportMissingImports]
    create_onehot_embedding,
    create_rope_config,
)

FOLDER = Path(__file__).parent / "compiled"
WORDS = tuple("abcdefgh")
D_MODEL, D_HEAD, POSITIONS = 128, 32, 64
VARIABLES = {"attention_ops.attend_to_offset": "before", "attention_ops.attend_argmax_dot": "induction"}
"""The variable of the program that each kind of head computes."""


def phi3_induction(words: tuple[str, ...]) -> Any:
    """The word that followed this word earlier."""
    rope = create_rope_config(d_head=D_HEAD, max_positions=POSITIONS)
    word = create_onehot_embedding(["<bos>", "<eos>", *words])
    before = attend_to_offset(rope, word, -1)
    induction = attend_argmax_dot(rope, query_vector=word, key_vector=before, value=word)
    return induction, word


def variables_of_heads(schematic: Any) -> list[tuple[int, str]]:
    """Layer and variable of every head that is not empty, in the order of their numbers.

    Besides the heads of the program, some clear directions for later use: "room" if the answer is written there, and
    otherwise "unread", because no answer depends on it.
    """
    graphs, found = schematic["graphs"], []
    kinds = {result: each["op"] for each in graphs["source"]["semantic_regions"] for result in each["results"]}
    source = {each["lowered"]: each["source"] for each in graphs["realization_map"]}
    ((first, width),) = schematic["token_io"]["output_residual_columns"]
    for layer in schematic["schedule"]["layers"]:
        operations = sorted(layer["attention_operations"], key=lambda each: each["heads"])
        for number, operation in enumerate(operations):
            if operation["heads"] != [number, 1]:
                raise ValueError(f"{operation['id']} is not head {number} alone")
            variable = "unread"
            if operation["type"] == "compute_attn":
                variable = VARIABLES[kinds[source[operation["node"]]]]
            elif any(at < first + width and first < at + size for at, size in operation["target_columns"]):
                variable = "room"
            found.append((layer["index"], variable))
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        output, embedding = phi3_induction(WORDS)
        compile_hf_bundle(
            output,
            embedding,
            folder,
            d=D_MODEL,
            d_head=D_HEAD,
            max_seq_len=POSITIONS,
            trim_heads=False,
            bos_token="<bos>",
            eos_token="<eos>",
        )
        here = Path(folder)
        config, schematic = (
            json.loads((here / f"{name}.json").read_text()) for name in ("config", "torchwright_schematic")
        )
        matrices = {name: each for path in here.glob("*.safetensors") for name, each in load_file(path).items()}
    drop = ("torchwright_schematic", "architectures", "transformers_version", "pad_token_id", "vocab_size", "dtype")
    about: dict[str, Any] = {
        "words": WORDS,
        "answers": WORDS,
        "heads": variables_of_heads(schematic),
        "shapes": {name: matrix.shape for name, matrix in matrices.items()},
        "config": {name: value for name, value in config.items() if name not in drop},
    }
    ((about["free"], _),) = schematic["physical_layout"]["known_null_components"]["never_referenced_residual_columns"]
    tensors = {}
    for name, matrix in matrices.items():
        at = np.nonzero(matrix)
        tensors |= {f"{name}.at": np.stack(at, 1).astype(np.int16), f"{name}.value": matrix[at].astype(np.float32)}
    texts = {
        "program": inspect.getsource(phi3_induction),
        "about": json.dumps(about),
        "compiler": "torchwright 0.2.0, Apache-2.0",
    }
    path = FOLDER / "phi3_induction.safetensors"
    save_file(tensors, path, texts)
    print(f"heads {about['heads']}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
