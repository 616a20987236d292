"""``HeadExamples``: texts from every quantile of each head's activity, and where the head attends in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int, UInt8

from mechheads.heads import HeadLike, check_head
from mechheads.results.kinds import KINDS
from mechheads.results.tables import TableResult

QUANTILES = 10
PARTS = (
    "highest",
    *(f"{100 - 100 * (i + 1) // QUANTILES}-{100 - 100 * i // QUANTILES}%" for i in range(QUANTILES)),
    "lowest",
    "random",
)
"""Where examples come from, by activity."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadExamples(TableResult):
    """Examples of what every head does in text, from ``mh.behaviour.head_examples``.

    Attributes:
        table: a row for each example: the head, the ``part`` of its activities that the window was drawn from, the
            window (a row of ``tokens``) and the number of its text, the ``activity``, the ``query`` at which it is
            largest, and the ``key`` from which most is moved there, with its attention as ``weight``.
        words: the texts of all tokens.
        tokens: the windows, as numbers of words; -1 after the end of a shorter window.
        keys: for each query of an example, the keys with the most attention, besides the first token.
        weights: the attention to these keys, in 255ths.
        first: the attention to the first token, in 255ths.
        sizes: the norm of what each key offers, v W_O, in 255ths of the largest in the window.
        provenance: what is needed to repeat it.
    """

    KIND = "examples"
    name, unit = "examples of heads", KINDS[KIND].unit

    table: pd.DataFrame
    words: tuple[str, ...]
    tokens: Int[np.ndarray, "window pos"]
    keys: UInt8[np.ndarray, "example pos kept"]
    weights: UInt8[np.ndarray, "example pos kept"]
    first: UInt8[np.ndarray, "example pos"]
    sizes: UInt8[np.ndarray, "example pos"]
    provenance: dict[str, Any]

    def of(self, head: HeadLike, *, around: int = 6) -> pd.DataFrame:
        """The examples of one head, with their text near the query and the key.

        The query is in double square brackets, the key in double angle brackets.

        Args:
            around: how many tokens to show before and after each of them.

        Raises:
            ValueError: if there is no such head.
        """
        layers, heads = self.table[["layer", "index"]].to_numpy().max(0) + 1
        found = check_head(head, int(layers), int(heads))
        rows = self.table[self.table["head"] == str(found)]
        return rows.assign(shown=[self.text(example, around=around) for example in rows.index])

    def text(self, example: int, *, around: int = 6) -> str:
        """The text of an example near its query, in double square brackets, and its key, in double angle brackets.

        Args:
            example: a row of the table.
            around: how many tokens to show before and after each of them.

        Raises:
            ValueError: if there is no such row.
        """
        row = self.table.iloc[self._checked(example)]
        tokens = [self.words[at] for at in self.tokens[row["window"]] if at >= 0]
        marks = {row["key"]: ("<<", ">>"), row["query"]: ("[[", "]]")}
        near = {at for mark in marks for at in range(mark - around, mark + around + 1) if 0 <= at < len(tokens)}
        text = ""
        for at in sorted(near):
            before, after = marks.get(at, ("", ""))
            if at and at - 1 not in near:
                text += "..."
            text += f"{before}{tokens[at]}{after}"
        return text if max(near) == len(tokens) - 1 else f"{text}..."

    def attention(self, example: int, *, moved: bool = False) -> Float[np.ndarray, "pos pos"]:
        """The attention that was kept of an example: to the first token, and to the keys that have most.

        Args:
            example: a row of the table.
            moved: weight attention by the norm of what is moved, so that each row sums to 1 again.

        Raises:
            ValueError: if there is no such row.
        """
        row = self.table.iloc[self._checked(example)]
        n = int((self.tokens[row["window"]] >= 0).sum())
        found = np.zeros((n, n))
        np.put_along_axis(found, self.keys[example, :n].astype(int), self.weights[example, :n] / 255, axis=1)
        found[:, 0] = self.first[example, :n] / 255
        if moved:
            found *= self.sizes[example, :n] / 255
            found /= np.maximum(found.sum(1, keepdims=True), np.finfo(float).tiny)
        return found

    def _checked(self, example: int) -> int:
        if not 0 <= example < len(self.table):
            raise ValueError(f"example is {example}; there are {len(self.table)}, counted from 0")
        return example
