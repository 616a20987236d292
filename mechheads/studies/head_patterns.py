"""``HeadPatterns``: the largest attention weights of every head in a few prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8, UInt16

from mechheads.behaviour.windows import default_texts
from mechheads.model.model import Model
from mechheads.prompts.encoding import text_ids, token_strings
from mechheads.prompts.tokens import PromptLike, Unpadded, read_prompts
from mechheads.results.provenance import make_provenance
from mechheads.results.tables import TableResult
from mechheads.runs.head_tensor import Attention

N_KEYS = 4
"""How many keys are stored for each query, besides the first token."""
LONGER = 192
"""The number of tokens of the longer text."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadPatterns(TableResult):
    """Attention of every head in a few prompts, from one run of each; shares are in 255ths."""

    KIND = "patterns"
    name, unit = "attention patterns", "share of attention"

    table: (
        pd.DataFrame
    )  # a row for each prompt: its name, and the rows of the arrays from start to stop, for its tokens
    words: tuple[str, ...]  # the tokens
    keys: UInt16[np.ndarray, "layer head row n_keys"]  # those with the most attention, besides the first token
    weights: UInt8[np.ndarray, "layer head row n_keys"]
    first: UInt8[np.ndarray, "layer head row"]  # the attention to the first token
    provenance: dict[str, Any]

    @classmethod
    def of(
        cls,
        runs: Sequence[Attention],
        names: Sequence[str],
        provenance: dict[str, Any] | None = None,
        *,
        n_keys: int = N_KEYS,
    ) -> HeadPatterns:
        """The patterns of runs of one model, each such as ``model.cache(prompts).attention``."""
        rows = [row for run in runs for row in run.strings]
        layers = []
        for layer in range(runs[0].sizes[0]):
            patterns = [each for run in runs for each in run.pattern.layer(layer).float().cpu().numpy()]
            each = [
                sparse(pattern[:, : len(row), : len(row)], n_keys) for pattern, row in zip(patterns, rows, strict=True)
            ]
            layers.append([np.concatenate(arrays, axis=1) for arrays in zip(*each, strict=True)])
        keys, weights, first = (np.stack(arrays) for arrays in zip(*layers, strict=True))
        lengths = [len(row) for row in rows]
        stop = np.cumsum(lengths)
        table = pd.DataFrame({"name": list(names), "start": stop - lengths, "stop": stop})
        return cls(table, tuple(word for row in rows for word in row), keys, weights, first, provenance or {})

    def tokens(self, prompt: int) -> list[str]:
        """The tokens of a prompt."""
        start, stop = self.table.loc[prompt, ["start", "stop"]]
        return list(self.words[start:stop])


def joined(one: HeadPatterns, other: HeadPatterns) -> HeadPatterns:
    """The patterns of two results of one model: first the prompts of one, then of the other."""
    n_keys = max(one.keys.shape[-1], other.keys.shape[-1])

    def wide(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [*[(0, 0)] * (array.ndim - 1), (0, n_keys - array.shape[-1])])

    later = other.table.assign(start=other.table["start"] + len(one.words), stop=other.table["stop"] + len(one.words))
    return HeadPatterns(
        pd.concat([one.table, later], ignore_index=True),
        one.words + other.words,
        np.concatenate([wide(one.keys), wide(other.keys)], axis=2),
        np.concatenate([wide(one.weights), wide(other.weights)], axis=2),
        np.concatenate([one.first, other.first], axis=2),
        one.provenance,
    )


def sparse(
    pattern: Float[np.ndarray, "head query key"], n_keys: int
) -> tuple[
    UInt16[np.ndarray, "head query n_keys"], UInt8[np.ndarray, "head query n_keys"], UInt8[np.ndarray, "head query"]
]:
    """The keys with the most attention besides the first token, their weights, and the weight of the first token."""
    first = pattern[:, :, 0]
    rest = pattern.copy()
    rest[:, :, 0] = 0
    at = np.argpartition(-rest, min(n_keys, rest.shape[-1]) - 1, axis=-1)[..., :n_keys]
    order = np.argsort(-np.take_along_axis(rest, at, axis=-1), axis=-1, kind="stable")
    at = np.take_along_axis(at, order, axis=-1)
    weights = np.take_along_axis(rest, at, axis=-1)
    if missing := n_keys - at.shape[-1]:
        at, weights = (np.pad(each, ((0, 0), (0, 0), (0, missing))) for each in (at, weights))
    return at.astype(np.uint16), _bytes(weights), _bytes(first)


def _bytes(share: Float[np.ndarray, "*any"]) -> UInt8[np.ndarray, "*any"]:
    return np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)


def head_patterns(model: Model, prompts: Sequence[PromptLike], names: Sequence[str] | None = None) -> HeadPatterns:
    """Attention of every head in prompts and in one longer text, prose of the package."""
    prompts = read_prompts(prompts, "prompts")
    text, most = next(default_texts()), min(LONGER, model.n_ctx)
    ids = text_ids(text, model.tokenizer)[0][:most] if model.tokenizer is not None else []
    batches: list[list[Any]] = [[*prompts], [Unpadded(ids)] if len(ids) > 1 else []]
    names = [*map(str, prompts if names is None else names)]
    if len(ids) > 1:
        names.append(f"longer text: {''.join(token_strings(ids[:6], model.tokenizer))}...")
    runs = [model.cache(batch, sites=("pattern",)).attention for batch in batches if batch]
    if not runs:
        raise ValueError("there is neither a prompt nor a tokenizer for a text")
    return HeadPatterns.of(runs, names, make_provenance(model, prompts=list(prompts), longer=len(ids)))
