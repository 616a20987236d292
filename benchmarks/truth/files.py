"""Files of models whose heads are known: what ``mechheads.testing.known.read_known`` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from mechheads.testing.known import KnownNode

KNOWN = Path(__file__).parent.parent.parent / "mechheads" / "data" / "known"
N_PAIRS, N_TEXTS = 200, 48
Pairs = tuple[list[str], list[str], list[str], list[str]]
"""Clean and corrupted texts, and the answers to both."""
_NOT_KEPT = ("architectures", "dtype", "transformers_version", "_attn_implementation_autoset")


def write_known(
    path: Path, made: Any, tokenizer: Any, nodes: Mapping[str, KnownNode], program: str, texts: list[str], pairs: Pairs
) -> None:
    """Write a model and what is known of it.

    Args:
        path: the file.
        made: a transformers model with a tokenizer of ``word_tokenizer``.
        nodes: what heads and MLPs do.
        program: the text of the program.
        texts: texts for a profile.
        pairs: pairs of texts.
    """
    config = {name: value for name, value in made.config.to_diff_dict().items() if name not in _NOT_KEPT}
    tokens = sorted(tokenizer.vocab, key=tokenizer.vocab.get)[len(tokenizer.all_special_ids) :]
    about = {
        "config": config,
        "vocabulary": [token.removeprefix("▁") for token in tokens],
        "nodes": {at: [it.name, it.does, it.attends] for at, it in nodes.items()},
        "program": program,
        "texts": texts,
        "pairs": pairs,
    }
    weights = {at: weight.numpy() for at, weight in made.state_dict().items()}
    np.savez_compressed(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **weights)


def draw_pairs(
    draw: Callable[[Generator], list[str]], answer: Callable[[Sequence[str]], str | None], n: int = N_PAIRS
) -> Pairs:
    """Pairs of texts of the same length with different answers."""
    rng = default_rng(0)
    columns: Pairs = [], [], [], []
    for _ in range(n):
        clean, corrupted = draw(rng), draw(rng)
        while len(clean) != len(corrupted) or answer(clean) == answer(corrupted):
            clean, corrupted = draw(rng), draw(rng)
        answers = (f" {answer(words)}" for words in (clean, corrupted))
        for column, text in zip(columns, (" ".join(clean), " ".join(corrupted), *answers), strict=True):
            column.append(text)
    return columns
