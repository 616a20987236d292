"""Where a head attends, in texts from every quantile of its activity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from mechheads.behaviour.measure import each_layer, measure, norm_of, values_of, written_by
from mechheads.behaviour.profile import USUAL_WINDOW, HeadProfile, Totals
from mechheads.behaviour.windows import Texts, Windows, check_window, read_windows, windows_of
from mechheads.engine.memory import keep_freed_memory
from mechheads.heads import HeadId, HeadLike, Heads, check_heads
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import token_strings
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.tables import TableResult

QUANTILES = 10
PARTS = (
    "highest",
    *(f"{100 - 100 * (i + 1) // QUANTILES}-{100 - 100 * i // QUANTILES}%" for i in range(QUANTILES)),
    "lowest",
    "random",
)
"""The parts of all windows that examples are drawn from, by activity."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadExamples(TableResult):
    """Examples of where every head attends in text, from ``mh.behaviour.head_examples``.

    Attributes:
        table: a row for each example: the head, the ``part`` of all windows, by activity, that the window was drawn
            from, the window (a row of ``tokens``) and the number of its text, the ``activity``, the ``query`` at which
            it is largest, and the ``key`` from which most is moved there, with its attention as ``weight``.
        words: the texts of all tokens.
        tokens: the windows, as indices into ``words``; -1 after the end of a shorter window.
        keys: for each query of an example, the keys with the most attention, except the first token.
        weights: the attention to these keys, in 255ths.
        first: the attention to the first token, in 255ths.
        sizes: the norm of v W_O at each key, in 255ths of the largest in the window.
        provenance: the model, texts and options that repeat it.
        ids: the token ids of ``words``.
    """

    KIND = "examples"
    name, unit = "examples of heads", KINDS[KIND].unit

    table: pd.DataFrame
    words: tuple[str, ...]
    tokens: Int[np.ndarray, "window pos"]
    keys: UInt8[np.ndarray, "example pos stored"]
    weights: UInt8[np.ndarray, "example pos stored"]
    first: UInt8[np.ndarray, "example pos"]
    sizes: UInt8[np.ndarray, "example pos"]
    provenance: dict[str, Any]
    ids: Int[np.ndarray, " word"]

    def of(self, head: HeadLike, *, around: int = 6) -> pd.DataFrame:
        """The examples of one head, with their text near the query and the key.

        The query is in double square brackets, the key in double angle brackets.

        Args:
            around: how many tokens to show before and after each of them.
        """
        name = str(HeadId.parse(head))
        rows = self.table[self.table["head"] == name]
        if rows.empty:
            raise ValueError(f"head {name} has no examples here; name one of {', '.join(self.table['head'].unique())}")
        return rows.assign(shown=[self.text(example, around=around) for example in rows.index])

    def text(self, example: int, *, around: int = 6) -> str:
        """The text of an example near its query, in double square brackets, and its key, in double angle brackets.

        Args:
            example: a row of the table.
            around: as in ``of``.
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

    def attention(self, example: int) -> Float[np.ndarray, "pos pos"]:
        """The stored attention of an example: to the first token, and to the three strongest other keys of each query.

        Args:
            example: a row of the table.
        """
        row = self.table.iloc[self._checked(example)]
        n = int((self.tokens[row["window"]] >= 0).sum())
        pattern = np.zeros((n, n))
        np.put_along_axis(pattern, self.keys[example, :n].astype(int), self.weights[example, :n] / 255, axis=1)
        pattern[:, 0] = self.first[example, :n] / 255
        return pattern

    def _checked(self, example: int) -> int:
        if not 0 <= example < len(self.table):
            raise ValueError(f"example is {example}; there are {len(self.table)}, counted from 0")
        return example


_STORED = 3
"""The number of keys that are stored for each query."""
_SITES = ("resid_pre", "v", "pattern")
_WINDOW, _EACH = 128, 2
"""The usual length of a window, and the usual number of examples from each tenth."""


@analysis
def head_examples(
    model: Model,
    texts: Texts = None,
    *,
    window: Annotated[int, Within(most=256)] | None = None,
    n_tokens: Annotated[int, Within(least=16)] = 20000,
    per_quantile: Positive = _EACH,
    heads: Heads | None = None,
) -> HeadExamples:
    """Examples of where every head attends, in windows of text from each tenth of its activity.

    The examples of a head are windows drawn from each tenth of all windows, ordered by its activity; the windows with
    its highest and its lowest activity; and windows drawn from all.

    The activity of a head at a query q is its attention to all tokens but the first, weighted by the norm of v W_O, as
    a share of the norm of the residual stream x at q:

        activity(q) = sum over k >= 1 of A(q, k) norm(v(k) W_O)  /  norm(x(q))

    The activity in a window is the largest of its queries. The first token is left out because many heads rest there.

    Args:
        texts: as in ``mh.profile_heads``.
        window: the length of a window in tokens; by default 128, or the model's context if that is shorter.
        n_tokens: the largest number of tokens to read.
        per_quantile: how many windows to draw from each tenth, and from all.
        heads: the heads to show, as in ``mh.sweep``; every head if left out.

    Returns:
        A table with a row for each example, and its tokens and attention. After Ctrl-C, the examples are from the
        windows read until then.

    Kobayashi et al. 2020 (arXiv 2004.10102), equation 5, for attention weighted by norms.

    >>> examples = mh.behaviour.head_examples(model, n_tokens=1280)
    >>> examples.of("L16H0")["part"].unique().tolist()
    ['highest', '90-100%', '80-90%', '70-80%', ..., '10-20%', '0-10%', 'lowest', 'random']
    """
    window = check_window(model, window, _WINDOW)
    named = check_heads(heads, model.n_layers, model.n_heads)
    return _examples(model, texts, (window, window), n_tokens, per_quantile, named)


@analysis
def profile_and_examples(
    model: Model, texts: Texts = None, *, n_tokens: Annotated[int, Within(least=16)] = 20000
) -> tuple[HeadProfile, HeadExamples]:
    """``mh.profile_heads``, and ``head_examples`` of the first half of each of its windows, from the same runs."""
    window = check_window(model, None, USUAL_WINDOW)
    keep_freed_memory()
    totals, every = Totals.none(model, window), check_heads(None, model.n_layers, model.n_heads)

    def add(windows: Windows, measures: tuple[Tensor, Tensor]) -> None:
        nonlocal totals
        totals = totals.plus(windows, *measures)

    examples = _examples(model, texts, (window, min(window, _WINDOW)), n_tokens, _EACH, every, add)
    metadata = examples.provenance | {"window": window, "n_tokens": totals.tokens}
    return HeadProfile.of(totals.values.numpy(), totals.at_distance.numpy(), metadata), examples


def _examples(
    model: Model,
    texts: Texts,
    lengths: tuple[int, int],
    n_tokens: int,
    per_quantile: int,
    heads: Sequence[HeadId],
    measured: Callable[[Windows, Any], None] | None = None,
) -> HeadExamples:
    """Examples of some heads. ``lengths``: of the windows that run, and of their beginnings that are examples."""
    length, window = lengths
    each = len(heads) * (2 * _STORED + 2)
    if n_tokens * each > (memory := current().limits.memory):
        raise ValueError(
            f"n_tokens is {n_tokens}, which needs {n_tokens * each / 2**20:,.0f} MB for this model; give at most "
            f"{memory // each}, or a larger budget"
        )
    ids, text, activities = list[list[int]](), list[int](), list[list[np.ndarray]]()

    def see(windows: Windows, values: tuple[Any, list[np.ndarray]]) -> None:
        if measured is not None:
            measured(windows, values[0])
        ids.extend(windows.ids[:, :window].tolist())
        text.extend(windows.text)
        activities.append(values[1])

    compute = partial(_activity, heads=heads, window=window, measures=measured is not None)
    bar = Bar(total=n_tokens, desc="examples", unit="token")
    metadata = read_windows(model, windows_of(model, texts, length, n_tokens), compute, see, bar)
    if len(ids) < 2:
        raise ValueError("texts have fewer than two windows of at least 16 tokens; give longer texts")
    provenance = make_provenance(
        model,
        metadata,
        texts="of the package" if texts is None else "own",
        window=window,
        n_tokens=sum(map(len, ids)),
        heads="all" if len(heads) == model.n_layers * model.n_heads else heads,
    )
    n_arrays = len(activities[0])
    arrays: list[np.ndarray] = [np.concatenate([batch.pop(0) for batch in activities]) for _ in range(n_arrays)]
    drawn = list(_drawn(arrays[0], heads, per_quantile))
    return _gather(model, list(zip(ids, text, strict=True)), heads, arrays, drawn, window, provenance)


def _activity(
    model: Model, ids: Int[Tensor, "window pos"], heads: Sequence[HeadId], window: int, measures: bool
) -> tuple[Any, list[np.ndarray]]:
    """Run windows. Of the beginning of each: the largest activity and its query [window, head]; and of each token, the
    keys with the most attention, this attention, the attention to the first token, and the norm of v W_O, in 255ths."""
    n, pos = ids[:, :window].shape
    of_layer = {
        head.layer: [(i, other.head) for i, other in enumerate(heads) if other.layer == head.layer] for head in heads
    }
    activity, query = torch.empty(n, len(heads)), torch.empty(n, len(heads), dtype=torch.long)
    stored = [torch.empty((n, pos, len(heads), *more), dtype=torch.uint8) for more in ((_STORED,), (_STORED,), (), ())]

    def see(layer: int, resid_pre: Tensor, v: Tensor, pattern: Tensor, **rest: Tensor) -> None:
        if layer not in of_layer:
            return
        at, own = map(list, zip(*of_layer[layer], strict=True))
        resid_pre, v, pattern = resid_pre[:, :pos], v[:, :pos], pattern[:, :, :pos, :pos]
        tiny, W_O = torch.finfo(pattern.dtype).tiny, written_by(model, layer)
        size = norm_of(values_of(model, v), W_O @ W_O.mT).permute(0, 2, 1)
        others = pattern.clone()
        others[..., 0] = 0
        norms = resid_pre.norm(dim=-1).clamp_min(tiny)
        largest = ((others @ size[..., None])[..., 0] / norms[:, None]).max(-1)
        activity[:, at], query[:, at] = largest.values[:, own], largest.indices[:, own]
        weights, keys = others.topk(_STORED, dim=-1)
        in_255ths = weights, pattern[..., 0], size / size.amax(-1, keepdim=True).clamp_min(tiny)
        rounded = [(255 * each).round().to(torch.uint8) for each in in_255ths]
        for store, values in zip(stored, (keys.to(torch.uint8), *rounded), strict=True):
            store[:, :, at] = values[:, own].transpose(1, 2)

    layers = [*of_layer]
    measured = measure(model, ids, also=see) if measures else each_layer(model, ids, layers, _SITES, see)
    return measured, [activity.numpy(), query.numpy(), *(each.flatten(0, 1).numpy() for each in stored)]


def _drawn(
    activity: Float[np.ndarray, "window head"], heads: Sequence[HeadId], each: int
) -> Iterator[tuple[int, str, int]]:
    """The index of the head, part and window of every example."""
    n = len(activity)
    for i, head in enumerate(heads):
        rng = np.random.default_rng([current().seed, head.layer, head.head])
        order = np.argsort(-activity[:, i], kind="stable")
        tenths = [order[n * one // QUANTILES : n * (one + 1) // QUANTILES] for one in range(QUANTILES)]
        some = [np.sort(rng.choice(len(one), min(each, len(one)), replace=False)) for one in tenths]
        parts = [order[:1], *(one[at] for one, at in zip(tenths, some, strict=True)), order[-1:]]
        parts.append(rng.choice(n, min(each, n), replace=False))
        for part, windows in zip(PARTS, parts, strict=True):
            yield from ((i, part, window) for window in windows.tolist())


def _gather(
    model: Model,
    read: Sequence[tuple[list[int], int]],
    heads: Sequence[HeadId],
    arrays: Sequence[np.ndarray],
    drawn: Sequence[tuple[int, str, int]],
    window: int,
    provenance: dict[str, Any],
) -> HeadExamples:
    """The result, from the tokens and the text of each window and the arrays of ``_activity``."""
    activity, query, *of_tokens = arrays
    head, parts, at = (np.array(each) for each in zip(*drawn, strict=True))
    lengths = np.array([len(ids) for ids, _ in read])
    starts, rows = np.cumsum(lengths) - lengths, np.arange(len(drawn))
    stored = [np.zeros((len(drawn), window, *each.shape[2:]), dtype=np.uint8) for each in of_tokens]
    for new, values in zip(stored, of_tokens, strict=True):
        for row, start, length, index in zip(new, starts[at], lengths[at], head, strict=True):
            row[:length] = values[start : start + length, index]
    keys, weights, first, sizes = stored
    queries = query[at, head]
    attended, attention = keys[rows, queries].astype(int), weights[rows, queries]
    best = (attention.astype(int) * np.take_along_axis(sizes, attended, axis=1)).argmax(1)
    used, of_window = np.unique(at, return_inverse=True)
    ids, numbers = np.unique([token for each in used for token in read[each][0]], return_inverse=True)
    tokens = np.full((len(used), window), -1, dtype=np.int32)
    tokens[np.arange(window) < lengths[used, None]] = numbers
    table = pd.DataFrame(
        {
            "head": [str(heads[i]) for i in head],
            "layer": [heads[i].layer for i in head],
            "index": [heads[i].head for i in head],
            "part": parts.tolist(),
            "window": of_window,
            "text": [read[i][1] for i in at],
            "activity": activity[at, head].astype(float),
            "query": queries,
            "key": attended[rows, best],
            "weight": attention[rows, best] / 255,
        }
    )
    words = tuple(token_strings(ids.tolist(), model.tokenizer))
    return HeadExamples(table, words, tokens, keys, weights, first, sizes, provenance, ids)
