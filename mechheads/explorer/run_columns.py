"""What a run itself says of every head, as columns of the page that shows its patterns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.measure import BEHAVIOURS, DELIMITER, PatternMeasures, entropy, keys_of, weights_of
from mechheads.explorer import contract
from mechheads.explorer.views import columns
from mechheads.results.stats import mean_over_prompts
from mechheads.runs.head_tensor import Attention

GROUP = "In this run"
_COLUMNS = {name: f"to_{name}" for name in BEHAVIOURS} | {"entropy": "entropy", "distance": "distance"}
_OVER = dict.fromkeys(("first", "self", "previous"), "over the third and all later tokens") | {
    "duplicate": "over the third and later tokens that have an earlier copy",
    "induction": "over the third and later tokens that have an earlier copy with a token after it",
    "delimiter": "over the third and later tokens with punctuation or a line end before them",
    "entropy": "over all tokens",
    "distance": "over the third and later tokens, of their attention to tokens before them but for the first",
}
"""Over which queries each is a mean."""
_FIRST = ("to_first", "to_previous")
"""The columns that the axes of the scatter show."""


def run_table(runs: Sequence[Attention]) -> pd.DataFrame:
    """A row for each head, [layer * n_heads + head]: where it attends in the prompts of some runs, at least one.

    Each value is a mean over queries and then over the prompts that have such queries, measured as in
    ``mh.profile_heads``. Two tokens are copies if their texts are the same. What no prompt has is left out.
    """
    n_layers, n_heads = runs[0].sizes
    measured = np.concatenate([_of_run(run) for run in runs], axis=1)
    means = mean_over_prompts(measured.transpose(0, 3, 2, 1)).reshape(n_layers * n_heads, len(_COLUMNS))
    heads = np.arange(n_layers * n_heads)
    table = pd.DataFrame({"layer": heads // n_heads, "head": heads % n_heads})
    values = dict(zip(_COLUMNS.values(), means.T, strict=True))
    return table.assign(**{name: values[name] for name in (*_FIRST, *values)}).dropna(axis=1, how="all")


def _of_run(run: Attention) -> Float[np.ndarray, "layer prompt column head"]:
    """The columns of every prompt of a run."""
    prompts = [_Prompt(strings) for strings in run.strings]
    layers = (run.pattern.layer(layer) for layer in range(run.sizes[0]))
    return np.stack([[each.of(of) for each, of in zip(prompts, patterns, strict=True)] for patterns in layers])


class _Prompt:
    """What is measured of the patterns of one prompt."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._n = len(strings)
        words = list(dict.fromkeys(strings))
        number = {word: i for i, word in enumerate(words)}
        ids = torch.tensor([[number[word] for word in strings]])
        delimiter = torch.tensor([DELIMITER.fullmatch(word) is not None for word in words])
        weights, has = weights_of(keys_of(ids, delimiter))
        self._measures = PatternMeasures(weights[:, : len(BEHAVIOURS)], has)

    def of(self, pattern: Float[Tensor, "head pos pos"]) -> Float[np.ndarray, "column head"]:
        """The columns of all heads of a layer; NaN where the prompt has no such queries."""
        seen = pattern[None, :, : self._n, : self._n].float().cpu()
        features = self._measures.features(seen)[..., 0].numpy()
        far = np.full(seen.shape[1], np.nan)
        if self._n > 2:
            far = self._measures.at_distance(seen)[1]["distance"][0].numpy()
        return np.stack([*features, entropy(seen)[0].numpy(), far])


def run_columns(table: pd.DataFrame, n_prompts: int) -> tuple[list[contract.Column], list[contract.Method], list[str]]:
    """The columns of a page's model from a table of a run, how they are measured, and what they do not say."""
    each = ", then over the prompts that have such tokens" if n_prompts > 1 else ""
    over = {column: f"A mean {_OVER[name]}{each}." for name, column in _COLUMNS.items() if column in table}
    made = columns(table)
    for column in made:
        column["question"] = None
        if column["name"] in over:
            column["group"], column["meaning"] = GROUP, f"{column['meaning']} {over[column['name']]}"
    return made, [{"name": GROUP, "text": _METHOD, "columns": [*over]}], list(_CAUTIONS)


def run_start(table: pd.DataFrame) -> contract.Start:
    """What the page of a run shows first: the map by one column, and the card of the head where it is largest."""
    by = "to_previous" if "to_previous" in table else "entropy"
    row = table.iloc[int(table[by].to_numpy().argmax())]
    return {"model": 0, "head": f"L{row['layer']:.0f}H{row['head']:.0f}", "chosen": {"colour": by, "by": by}}


_METHOD = (
    "Where each head attends in these prompts: the share of its attention that goes to the first token, to the token "
    "itself, to the previous token, to earlier copies of the token, to tokens that follow an earlier copy (induction) "
    "and to punctuation and line ends; the entropy of its attention, and how far back it goes. But for the first token "
    "and the token itself, the first token does not count as a key."
)
_CAUTIONS = (
    "These numbers are of a few prompts and have no null: mh.profile_heads measures the same on ordinary text, with "
    "intervals and against permuted keys.",
    "Attention is not importance: what a head attends to most it may not move at all.",
)
