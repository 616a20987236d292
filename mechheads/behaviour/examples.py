"""Where a head attends, in texts from every quantile of its activity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from mechheads.behaviour.measure import each_layer, measure, norm_of, values_of, written_by
from mechheads.behaviour.profile import USUAL_WINDOW, HeadProfile, Totals
from mechheads.behaviour.windows import Texts, Windows, check_window, each_batch, windows_of
from mechheads.engine.memory import keep_freed_memory
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within
from mechheads.messages.interrupted import stop_if, until_interrupted
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
        ids: the token ids of ``words``.
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
    ids: Int[np.ndarray, " word"]

    def of(self, head: HeadLike, *, around: int = 6) -> pd.DataFrame:
        """The examples of one head, with their text near the query and the key.

        The query is in double square brackets, the key in double angle brackets.

        Args:
            around: how many tokens to show before and after each of them.
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


_KEPT = 3
"""Keys that are kept of each query."""
_WINDOW, _EACH = 128, 2
"""The usual length of a window, and number of examples from each tenth."""


@analysis
def head_examples(
    model: Model,
    texts: Texts = None,
    *,
    window: Annotated[int, Within(most=256)] | None = None,
    n_tokens: Annotated[int, Within(least=16)] = 20000,
    per_quantile: Positive = _EACH,
) -> HeadExamples:
    """Show where every head attends, in windows of text from each tenth of its activity.

    The windows in which a head does most are rarely typical of it. So the examples of a head are windows drawn from
    each tenth of all windows, ordered by its activity, besides the one with the highest and the one with the lowest
    activity, and windows drawn from all.

    The activity of a head at a query q is the norm of what it moves there from all tokens but the first, as a share of
    the norm of the residual stream x that it reads:

        activity(q) = sum over k >= 1 of A(q, k) norm(v(k) W_O)  /  norm(x(q))

    The activity in a window is its largest one. The first token is left out because many heads rest there.

    Args:
        texts: a file (texts with an empty line between them), or a list of texts or of token ids; by
            default, prose of the package and the help texts of Python.
        window: the length of a window in tokens; by default 128, or the model's context if that is shorter.
        n_tokens: how many tokens to read at most.
        per_quantile: how many windows to draw from each tenth, and from all.

    Returns:
        A table with a row for each example, and its tokens and attention. After Ctrl-C, of the windows until then.

    Raises:
        RuntimeError: if some windows end every worker that tries them.
        KeyboardInterrupt: if Ctrl-C came before the second window.

    Kobayashi et al. 2020 (arXiv 2004.10102), equation 5, for the norm of what is moved.

    >>> examples = mh.behaviour.head_examples(model, n_tokens=1280)
    >>> examples.of("L16H0")["part"].unique().tolist()
    ['highest', '90-100%', '80-90%', '70-80%', ..., '10-20%', '0-10%', 'lowest', 'random']
    """
    window = check_window(model, window, _WINDOW)
    return _examples(model, texts, (window, window), n_tokens, per_quantile)


@analysis
def profile_and_examples(
    model: Model, texts: Texts = None, *, n_tokens: Annotated[int, Within(least=16)] = 20000
) -> tuple[HeadProfile, HeadExamples]:
    """``mh.profile_heads``, and ``head_examples`` of the first half of each of its windows, which run once for both."""
    window = check_window(model, None, USUAL_WINDOW)
    keep_freed_memory()
    totals = Totals.none(model, window)

    def add(windows: Windows, found: tuple[Tensor, Tensor]) -> None:
        nonlocal totals
        totals = totals.plus(windows, *found)

    examples = _examples(model, texts, (window, min(window, _WINDOW)), n_tokens, _EACH, add)
    about = examples.provenance | {"window": window, "n_tokens": totals.tokens}
    return HeadProfile.of(totals.values.numpy(), totals.at_distance.numpy(), about), examples


def _examples(
    model: Model,
    texts: Texts,
    lengths: tuple[int, int],
    n_tokens: int,
    per_quantile: int,
    measured: Callable[[Windows, Any], None] | None = None,
) -> HeadExamples:
    """Examples of every head; ``lengths`` of the windows that are read, and of the beginnings that are examples."""
    length, window = lengths
    each = model.n_layers * model.n_heads * (2 * _KEPT + 2)
    if n_tokens * each > (memory := current().limits.memory):
        raise ValueError(
            f"n_tokens is {n_tokens}, which needs {n_tokens * each / 2**20:,.0f} MB for this model; give at most "
            f"{memory // each}, or a larger budget"
        )
    seen: list[_Seen] = []
    batches = windows_of(model, texts, length, n_tokens)
    bar = Bar(total=n_tokens, desc="examples", unit="token")

    def see(windows: Windows, found: tuple[Any, Sequence[np.ndarray]]) -> None:
        if measured is not None:
            measured(windows, found[0])
        seen.extend(_seen(replace(windows, ids=windows.ids[:, :window]), found[1]))
        bar.update(windows.ids.numel())

    with until_interrupted() as interrupts, bar:
        stop_if(each_batch(model, batches, partial(_watch, window=window, measures=measured is not None), see))
    interrupts.stop_unless(len(seen) > 1)
    interrupts.warn(f"{sum(len(one.ids) for one in seen)} tokens", "the examples are of these")
    if len(seen) < 2:
        raise ValueError("texts have fewer than two windows of at least 16 tokens; give longer texts")
    provenance = make_provenance(
        model,
        texts="of the package" if texts is None else "given",
        window=window,
        n_tokens=sum(len(one.ids) for one in seen),
        n_windows=len(seen),
        interrupted=interrupts.interrupted,
    )
    return _gather(model, seen, window, list(_drawn(seen, per_quantile)), provenance)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What all heads did in one window: at the query of the largest activity, the keys attended to, in 255ths."""

    ids: list[int]
    text: int
    activity: Float[np.ndarray, "layer head"]
    query: Int[np.ndarray, "layer head"]
    keys: UInt8[np.ndarray, "layer head pos kept"]
    weights: UInt8[np.ndarray, "layer head pos kept"]
    first: UInt8[np.ndarray, "layer head pos"]
    sizes: UInt8[np.ndarray, "layer head pos"]


def _seen(windows: Windows, arrays: Sequence[np.ndarray]) -> Iterator[_Seen]:
    """What was seen of each window."""
    for at, (ids, text) in enumerate(zip(windows.ids.tolist(), windows.text, strict=True)):
        yield _Seen(ids, text, *(each[at] for each in arrays))


def _watch(model: Model, ids: Int[Tensor, "window pos"], window: int, measures: bool) -> tuple[Any, list[np.ndarray]]:
    """Run windows, and keep what heads attend to most in the beginning of each: what ``_Seen`` has, in its order."""
    n, pos = ids[:, :window].shape
    of_heads = n, model.n_layers, model.n_heads
    activity, query = torch.empty(of_heads), torch.empty(of_heads, dtype=torch.long)
    kept = [torch.empty((*of_heads, pos, *more), dtype=torch.uint8) for more in ((_KEPT,), (_KEPT,), (), ())]

    def see(layer: int, resid_pre: Tensor, v: Tensor, pattern: Tensor, **rest: Tensor) -> None:
        resid_pre, v, pattern = resid_pre[:, :pos], v[:, :pos], pattern[:, :, :pos, :pos]
        tiny = torch.finfo(pattern.dtype).tiny
        size, others, moved = activity_of(model, layer, resid_pre, v, pattern)
        largest = moved.max(-1)
        activity[:, layer], query[:, layer] = largest.values, largest.indices
        weights, keys = others.topk(_KEPT, dim=-1)
        in_255ths = weights, pattern[..., 0], size / size.amax(-1, keepdim=True).clamp_min(tiny)
        rounded = [(255 * each).round().to(torch.uint8) for each in in_255ths]
        for store, values in zip(kept, (keys.to(torch.uint8), *rounded), strict=True):
            store[:, layer] = values

    found = measure(model, ids, see) if measures else each_layer(model, ids, ("resid_pre", "v", "pattern"), see)
    return found, [each.numpy() for each in (activity, query, *kept)]


def activity_of(
    model: Model,
    layer: int,
    resid_pre: Float[Tensor, "window pos d_model"],
    v: Float[Tensor, "window pos kv d_head"],
    pattern: Float[Tensor, "window head pos pos"],
) -> tuple[Float[Tensor, "window head pos"], Float[Tensor, "window head pos pos"], Float[Tensor, "window head pos"]]:
    """The norm of what each key offers, the attention to all keys but the first, and the activity at each query."""
    W_O = written_by(model, layer)
    size = norm_of(values_of(model, v), W_O @ W_O.mT).permute(0, 2, 1)
    others = pattern.clone()
    others[..., 0] = 0
    norms = resid_pre.norm(dim=-1).clamp_min(torch.finfo(pattern.dtype).tiny)
    return size, others, (others @ size[..., None])[..., 0] / norms[:, None]


def _drawn(seen: Sequence[_Seen], each: int) -> Iterator[tuple[HeadId, str, int]]:
    """The head, part and window of every example."""
    activity = np.stack([one.activity for one in seen])
    n = len(seen)
    for layer, head in np.ndindex(activity.shape[1:]):
        rng = np.random.default_rng([current().seed, layer, head])
        order = np.argsort(-activity[:, layer, head], kind="stable")
        tenths = [order[n * i // QUANTILES : n * (i + 1) // QUANTILES] for i in range(QUANTILES)]
        some = [np.sort(rng.choice(len(one), min(each, len(one)), replace=False)) for one in tenths]
        parts = [order[:1], *(one[at] for one, at in zip(tenths, some, strict=True)), order[-1:]]
        parts.append(rng.choice(n, min(each, n), replace=False))
        for part, windows in zip(PARTS, parts, strict=True):
            for window in windows.tolist():
                yield HeadId(layer, head), part, window


def _gather(
    model: Model, seen: Sequence[_Seen], window: int, drawn: list[tuple[HeadId, str, int]], provenance: dict[str, Any]
) -> HeadExamples:
    """The result: only windows that some example needs, padded to one length."""
    used = sorted({at for _, _, at in drawn})
    ids = sorted({token for at in used for token in seen[at].ids})
    number = {token: i for i, token in enumerate(ids)}
    tokens = np.full((len(used), window), -1, dtype=np.int32)
    for row, at in enumerate(used):
        tokens[row, : len(seen[at].ids)] = [number[token] for token in seen[at].ids]
    of_window = {at: row for row, at in enumerate(used)}
    keys, weights = (np.zeros((len(drawn), window, _KEPT), dtype=np.uint8) for _ in range(2))
    first, sizes = (np.zeros((len(drawn), window), dtype=np.uint8) for _ in range(2))
    rows = []
    for row, (head, part, at) in enumerate(drawn):
        one, of = seen[at], (head.layer, head.head)
        for kept, name in ((keys, "keys"), (weights, "weights"), (first, "first"), (sizes, "sizes")):
            kept[row, : len(one.ids)] = getattr(one, name)[of]
        query = int(one.query[of])
        best = int((one.weights[of][query].astype(int) * one.sizes[of][one.keys[of][query]]).argmax())
        rows.append(
            {
                "head": str(head),
                "layer": head.layer,
                "index": head.head,
                "part": part,
                "window": of_window[at],
                "text": one.text,
                "activity": float(one.activity[of]),
                "query": query,
                "key": int(one.keys[of][query, best]),
                "weight": one.weights[of][query, best] / 255,
            }
        )
    words = tuple(token_strings(ids, model.tokenizer))
    return HeadExamples(pd.DataFrame(rows), words, tokens, keys, weights, first, sizes, provenance, np.array(ids))
