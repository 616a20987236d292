"""Windows of text, rows of repeated random tokens, and computations on windows, in this process or by workers."""

from __future__ import annotations

import os
import pydoc_data.topics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile, zip_longest
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from mechheads.data import folder
from mechheads.engine.dispatch import each_by_workers, setup_of_each
from mechheads.io.text import read_text, shown
from mechheads.limits import DEFAULT_BUDGET, current
from mechheads.messages.arguments import Positive, Within, check_at_least, checked
from mechheads.messages.notices import stop_if, until_interrupted
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.chats import is_chat
from mechheads.prompts.encoding import begin_tokens, text_ids
from mechheads.prompts.tokens import Unpadded, check_padding, read_prompts
from mechheads.runs.head_cache import token_bytes
from mechheads.scale.ray_cluster import pool_of

T = TypeVar("T")
Texts = str | Path | Sequence[str | Sequence[int]] | None
"""A source of text: a file, a list of texts or rows of token ids, or None for the package's own corpus."""

LEAST_WINDOW = 16
"""Shorter ends of a text are left out, because they have too few earlier tokens to attend to."""
_BATCHES_A_WORKER = 4
"""How many batches are computed for each worker before any is counted; after a kill, they are computed again."""
AT_ONCE = 1024
"""Tokens in a batch of windows, if all weights are in memory."""
_COPIES = 3
"""Measuring takes about this many times the memory of the blocks alone."""


@dataclass(frozen=True)
class Windows:
    """Windows of one length: their tokens, and the number of the text that each comes from."""

    ids: Int[Tensor, "window pos"]
    text: list[int]

    def __str__(self) -> str:
        return f"a batch of {len(self.ids)} windows, which begins with the tokens {self.ids[0, :8].tolist()},"


def check_window(model: Model, window: int | None, usual: int) -> int:
    """The length of windows, checked; for None the usual one, or the model's context if that is shorter."""
    window = min(usual, model.n_ctx) if window is None else window
    check_at_least(LEAST_WINDOW, window=window)
    if window > model.n_ctx:
        raise ValueError(f"window is {window}, but the model's context has {model.n_ctx} tokens; give at most that")
    return window


def tokens_in_batch(model: Model, length: int) -> int:
    """The number of tokens of windows to measure at a time; if weights are on disk, as many as fit into 4 GB."""
    if model.backend.on_disk is None:
        return AT_ONCE
    return max(AT_ONCE, DEFAULT_BUDGET // (_COPIES * token_bytes(model, length)))


def default_texts() -> Iterator[str]:
    """The package's own prose, a text of each kind in turn, and then the help texts that come with Python.

    >>> next(mh.behaviour.default_texts()).split()[:3]
    ['Should', 'the', 'old']
    """
    files = sorted(folder("corpus").iterdir(), key=str)
    for texts in zip_longest(*(file.read_text(encoding="utf-8").split("\n----\n") for file in files)):
        yield from filter(None, texts)
    for name in sorted(pydoc_data.topics.topics):
        yield pydoc_data.topics.topics[name]


def windows_of(model: Model, texts: Texts, length: int, most: int | None) -> Iterator[Windows]:
    """Batches of windows of ``length`` tokens, and of shorter ends of texts, which are cut to a multiple of 16."""
    waiting: dict[int, list[tuple[list[int], int]]] = {}
    empty = True
    for window, text in _single_windows(model, texts, length, most):
        empty = False
        batch = waiting.setdefault(len(window), [])
        batch.append((window, text))
        if len(batch) == max(1, tokens_in_batch(model, length) // len(window)):
            yield _stacked(waiting.pop(len(window)), model)
    for batch in waiting.values():
        yield _stacked(batch, model)
    if empty:
        raise ValueError(f"texts have no window of at least {LEAST_WINDOW} tokens; give longer texts")


def read_windows(
    model: Model,
    batches: Iterator[Windows],
    compute: Callable[[Model, Int[Tensor, "window pos"]], T],
    see: Callable[[Windows, T], object],
    bar: Bar,
    done: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """Pass each batch of windows and its computed value to ``see``, until Ctrl-C. Returns counts for the provenance.
    ``done``: the windows and tokens of an earlier call."""
    windows, tokens = done
    with until_interrupted() as interrupts, bar:
        for batch, value in _each_batch(model, batches, compute):
            see(batch, value)
            windows, tokens = windows + len(batch.ids), tokens + batch.ids.numel()
            bar.update(batch.ids.numel())
    interrupts.stop_unless(windows > 1)
    interrupts.warn(f"{tokens} tokens", "the result is of these")
    return {"n_windows": windows, "n_tokens": tokens, "interrupted": interrupts.interrupted}


def _each_batch(
    model: Model, batches: Iterator[Windows], compute: Callable[[Model, Int[Tensor, "window pos"]], T]
) -> Iterator[tuple[Windows, T]]:
    """Each batch of windows and its computed value, in this process or by workers."""
    if (workers := current().limits.workers) is None:
        yield from ((windows, compute(model, windows.ids)) for windows in batches)
        return
    setup = setup_of_each(model, partial(_of_batch, compute))
    while some := list(islice(batches, _BATCHES_A_WORKER * pool_of(workers).replicas)):
        values = dict[int, T]()
        units = [replace(windows, ids=windows.ids.cpu()) for windows in some]
        stopped = each_by_workers(workers, setup, units, values.__setitem__)
        yield from ((some[i], values[i]) for i in takewhile(values.__contains__, range(len(some))))
        stop_if(stopped)


def _of_batch(compute: Callable[[Model, Tensor], T], model: Model, windows: Windows) -> T:
    return compute(model, windows.ids.to(model.device))


@checked
def repeated_tokens(
    model: Model, n: Positive = 16, length: Annotated[int, Within(least=8)] = 64, *, seed: int = 0
) -> list[list[int]]:
    """Rows of random tokens, each followed by its copy, for ``mh.profile_heads``.

    In the second half of a row, every token has one earlier copy, and the token after this copy is also the next token
    of the row. So the scores ``induction``, ``duplicate`` and ``previous`` need no corpus.

    Args:
        n: the number of rows.
        length: the number of different tokens in a row, which is half of the row. The beginning-of-sequence token comes
            before them if the tokenizer adds one.
        seed: the seed of the random tokens.

    Returns:
        ``n`` rows of token ids.

    Raises:
        ValueError: if a row is longer than the model's context, or the vocabulary is too small.

    Olsson et al. 2022 (arXiv 2209.11895).

    >>> rows = mh.behaviour.repeated_tokens(model, n=4, length=32)
    >>> profile = mh.profile_heads(model, rows, window=64)
    >>> "L18H6" in [str(head) for head in profile.select(behaviour="induction").heads(4)]
    True
    """
    tokenizer = model.tokenizer
    special = set(tokenizer.all_special_ids)
    known = [token for token in range(min(len(tokenizer), model.d_vocab)) if token not in special]
    first = begin_tokens(tokenizer)
    if (size := len(first) + 2 * length) > model.n_ctx:
        raise ValueError(f"length is {length}, so rows have {size} tokens, but the context has {model.n_ctx}")
    if length > len(known):
        raise ValueError(f"length is {length}, but the vocabulary has only {len(known)} tokens to draw from")
    draw = torch.Generator().manual_seed(seed)
    rows = [[known[at] for at in torch.randperm(len(known), generator=draw)[:length].tolist()] for _ in range(n)]
    return [[*first, *row, *row] for row in rows]


def _stacked(windows: list[tuple[list[int], int]], model: Model) -> Windows:
    ids, text = zip(*windows, strict=True)
    return Windows(torch.tensor(ids, device=model.device), list(text))


def _single_windows(model: Model, texts: Texts, length: int, most: int | None) -> Iterator[tuple[list[int], int]]:
    """Each window and the number of its text."""
    seen, begin = 0, begin_tokens(model.tokenizer)
    for number, text in enumerate(_texts(texts)):
        before, ids = begin if isinstance(text, str) else [], _own_ids(text, number, model)
        step = length - len(before)
        for start in range(0, len(ids), step):
            window = [*before, *ids[start : start + step]]
            if most is not None:
                window = window[: most - seen]
            if len(window) < length:
                window = window[: len(window) // LEAST_WINDOW * LEAST_WINDOW]
            if window:
                seen += len(window)
                yield window, number
            if most is not None and most - seen < LEAST_WINDOW:
                return


def _texts(texts: Texts) -> Iterable[str | Sequence[int]]:
    if texts is None:
        return default_texts()
    if isinstance(texts, (str, Path)):
        if not os.path.isfile(texts):
            raise ValueError(f"texts {str(texts)[:60]!r} is not a file; give a file, or a list of texts")
        return read_text(Path(texts)).split("\n\n")
    return texts_or_ids(texts)


def texts_or_ids(texts: Sequence[str | Sequence[int]]) -> list[str | Sequence[int]]:
    """The entries of a list, checked to be texts or rows of token ids; a chat is neither."""
    prompts = read_prompts(texts, "texts")
    for number, text in enumerate(prompts):
        if is_chat(text):
            raise ValueError(f"texts[{number}] is {shown(text)}; give a text or a list of token ids")
    return prompts


def _own_ids(text: str | Sequence[int], number: int, model: Model) -> list[int]:
    """The token ids of a text without beginning tokens, or a row of ids, checked."""
    if isinstance(text, str):
        ids = text_ids(text, model.tokenizer, special=False)[0]
    else:
        ids = list(text)
        if type(text) is not Unpadded:
            check_padding({number: ids}, model.tokenizer, "text")
    if any(not 0 <= token < model.d_vocab for token in ids):
        raise ValueError(f"texts[{number}] contains token ids outside 0..{model.d_vocab - 1}")
    return ids
