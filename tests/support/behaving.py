"""Models whose heads behave as they were made to: attend to an earlier copy, copy it, suppress it, stand in.

``write_behaving`` makes the file of the model that ``mh.testing.behaving_model`` loads, and ``make_behaving`` any other
model: GPT-2s of 6 layers of 4 heads, whose weights are computed. The residual stream of a token has mutually orthogonal
parts: its word, its position (as sines and cosines of 8 frequencies), flags for the first position and for
delimiters, a constant, and, written by heads, the word before and a flag that a head has copied. With x and y for the
query's and the key's parts:

| behaviour | attention score |
|---|---|
| ``previous-token`` | position of y = position of x, turned back by one |
| ``self`` | position of y = position of x |
| ``sink`` | y is first |
| ``duplicate-token`` | word of y = word of x, and not the same position; otherwise y is first |
| ``induction`` | word before y = word of x; otherwise y is first |
| ``delimiter`` | y is a delimiter; otherwise y is first |
| ``primary``, ``negative`` | as ``induction`` |
| ``backup`` | as ``induction``, but y is first if the flag of x says that a head has copied |

Each is a product W_Q W_K^T of rank d_head. Without noise, most attention goes where it should.

What heads write is a random map of the word that they attend to, with three exceptions. A ``primary`` head raises the
logit of this word by about 4, and sets the flag of x. A ``backup`` head raises it by 1.5: only if the primary head has
not copied, for example because it is ablated. A ``negative`` head lowers it by 1.

**Noise** is Gaussian, on W_Q and W_K, scaled so that W_Q W_K^T is off by ``noise`` times its Frobenius norm; in the
three exceptions also on W_V and W_O. A head with nothing planted has Gaussian W_Q and W_K with the same Frobenius norm.
It reads no constant, so that where it attends depends on both tokens.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from mechheads.heads import HeadId
from mechheads.testing.known import KnownModel, KnownNode, read_known, word_tokenizer
from support.behaving_weights import D_HEAD, DELIMITERS, DOES, Behaviour, Writer
from support.planted_models import blank_gpt2

N_LAYERS, N_HEADS, N_PAIRS = 6, 4, 200
Pairs = tuple[list[str], list[str], list[str], list[str]]
"""Clean and corrupted texts, and the answers to both."""
_NOT_KEPT = ("architectures", "dtype", "transformers_version", "_attn_implementation_autoset")
_VOCABULARY, _CONTEXT = 128, 128
_PIECE, _TEXTS, _LENGTH = 3, 24, 99
_TWICE: tuple[Behaviour, ...] = (
    "previous-token",
    "self",
    "sink",
    "duplicate-token",
    "induction",
    "delimiter",
    "negative",
    "backup",
)
"""The behaviours of two heads each. One more head is primary."""
_AFTER: tuple[Behaviour, ...] = ("induction", "negative", "primary", "backup")
"""They attend to the token after an earlier copy, so they need a previous-token head in layer 0."""
_ATTENDS = {"negative": "induction", "primary": "induction", "backup": "sink"}
"""A backup head rests on the first token, because the primary head has copied."""


def make_behaving(
    seed: int = 0,
    noise: float = 0.5,
    plant: Mapping[str, Behaviour] | None = None,
    shape: tuple[int, int] = (N_LAYERS, N_HEADS),
    length: int = 40,
) -> KnownModel:
    """A model whose heads behave as ``plant`` says, or as ``_draw``; a ``shape`` of its own needs a plant.

    Induction, primary, negative and backup need a previous-token head in layer 0; backup comes after primary.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "behaving.npz"
        write_behaving(path, seed, noise, plant, shape, length)
        return read_known(f"behaving-{seed}", path)


def write_behaving(
    path: Path,
    seed: int = 0,
    noise: float = 0.5,
    plant: Mapping[str, Behaviour] | None = None,
    shape: tuple[int, int] = (N_LAYERS, N_HEADS),
    length: int = 40,
) -> None:
    """Write the file of such a model."""
    rng = default_rng([seed, 0])
    given: dict[HeadId, Behaviour] = {HeadId.parse(at): behaviour for at, behaviour in (plant or {}).items()}
    heads = _draw(rng) if plant is None else given
    words = _words(_VOCABULARY)
    tokenizer = word_tokenizer(words, "behaving", _CONTEXT)
    sizes = {"vocab_size": len(tokenizer), "n_positions": _CONTEXT}
    gpt2 = blank_gpt2(*shape, shape[1] * D_HEAD, **sizes)
    writer = Writer(gpt2, tokenizer, rng)
    tells = min((head for head, each in heads.items() if each == "previous-token" and head.layer == 0), default=None)
    for layer, number in np.ndindex(shape):
        head = HeadId(layer, number)
        own = default_rng([seed, 1, layer, number])
        writer.write(head, heads.get(head), noise, own, tells_previous=head == tells)
    nodes = {str(at): KnownNode(each, DOES[each], _ATTENDS.get(each, each)) for at, each in sorted(heads.items())}
    write_known(path, gpt2, tokenizer, nodes, "", _texts(words, seed), _pairs(words, seed, length))


def write_known(
    path: Path, made: Any, tokenizer: Any, nodes: Mapping[str, KnownNode], program: str, texts: list[str], pairs: Pairs
) -> None:
    """Write a model and what is known of it, as ``mechheads.testing.known.read_known`` reads it."""
    config = {name: value for name, value in made.config.to_diff_dict().items() if name not in _NOT_KEPT}
    tokens = sorted(tokenizer.vocab, key=tokenizer.vocab.get)[len(tokenizer.all_special_ids) :]
    metadata = {
        "config": config,
        "vocabulary": [token.removeprefix("▁") for token in tokens],
        "nodes": {at: [it.name, it.does, it.attends] for at, it in nodes.items()},
        "program": program,
        "texts": texts,
        "pairs": pairs,
    }
    weights = {at: weight.numpy() for at, weight in made.state_dict().items()}
    np.savez_compressed(path, about=np.frombuffer(json.dumps(metadata).encode(), np.uint8), **weights)


def _words(n: int) -> list[str]:
    """Delimiters and n words."""
    syllables = [consonant + vowel for consonant in "bdfklmnrstv" for vowel in "aiou"]
    both = [first + second for first in syllables for second in syllables]
    return [*DELIMITERS, *default_rng(0).permutation(both)[:n].tolist()]


def _texts(words: Sequence[str], seed: int) -> list[str]:
    """Random words with delimiters, in which pieces of three words come again."""
    rng, rows = default_rng([seed, 2]), []
    for _ in range(_TEXTS):
        row: list[str] = []
        some = rng.choice(words, 30)
        while len(row) < _LENGTH:
            kind = rng.choice(3, p=(0.12, 0.22, 0.66)) if len(row) > _PIECE else 2
            start = rng.integers(max(1, len(row) - _PIECE))
            row += [[rng.choice([*DELIMITERS])], row[start : start + _PIECE], [rng.choice(some)]][kind]
        rows.append(" ".join(row[:_LENGTH]))
    return rows


def _pairs(words: Sequence[str], seed: int, length: int) -> Pairs:
    """Texts that end with a copy of an earlier word, and the word that followed it as the answer.

    In the corrupted text, the last word has no copy. The wrong answer is another word of the text.
    """
    rng = default_rng([seed, 3])
    columns: Pairs = [], [], [], []
    for _ in range(N_PAIRS):
        row = rng.choice(words[len(DELIMITERS) :], length, replace=False).tolist()
        first, other = rng.choice(np.arange(1, length - 3), 2, replace=False)
        clean, corrupted = (" ".join([*row[:-2], last]) for last in (row[first], row[-1]))
        answers = (f" {row[at]}" for at in (first + 1, other if other != first + 1 else 0))
        for column, value in zip(columns, (clean, corrupted, *answers), strict=True):
            column.append(value)
    return columns


def _draw(rng: Generator) -> dict[HeadId, Behaviour]:
    """Two heads of each behaviour, and one that is primary."""
    heads: dict[HeadId, Behaviour] = {HeadId(0, int(rng.integers(N_HEADS))): "previous-token"}

    def draw(kinds: Sequence[Behaviour], first: int) -> None:
        """Plant behaviours in free heads from a layer on."""
        every = [HeadId(layer, head) for layer in range(first, N_LAYERS) for head in range(N_HEADS)]
        free = [head for head in every if head not in heads]
        heads.update({free[i]: kind for i, kind in zip(rng.permutation(len(free)), kinds, strict=False)})

    heads[HeadId(int(rng.integers(1, N_LAYERS - 1)), int(rng.integers(N_HEADS)))] = "primary"
    rest: list[Behaviour] = [kind for kind in (*_TWICE, *_TWICE) if kind not in _AFTER]
    draw(["backup", "backup"], 1 + next(head.layer for head, kind in heads.items() if kind == "primary"))
    draw(["induction", "negative", "induction", "negative"], 1)
    draw(rest[1:], 0)
    return heads
