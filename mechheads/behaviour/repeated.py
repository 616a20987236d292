"""Random tokens, repeated once: text in which only an earlier copy tells what comes next."""

from __future__ import annotations

import torch

from mechheads.messages.arguments import check_at_least
from mechheads.model.model import Model
from mechheads.prompts.encoding import begin_tokens


def repeated_tokens(model: Model, n: int = 16, length: int = 64, *, seed: int = 0) -> list[list[int]]:
    """Rows of random tokens, each followed by its copy, for ``mh.profile_heads``.

    In the second half of a row, every token has one earlier copy, and the token after this copy is the next one. So the
    scores ``induction``, ``duplicate`` and ``previous`` of these rows need no corpus.

    Args:
        n: the number of rows.
        length: the number of different tokens in a row. The beginning-of-sequence token comes first if the tokenizer
            adds one.
        seed: of the tokens.

    Raises:
        ValueError: if a row is longer than the model's context, or the vocabulary is too small.

    Olsson et al. 2022 (arXiv 2209.11895).

    >>> rows = mh.behaviour.repeated_tokens(model, n=4, length=32)
    >>> rows[0][:32] == rows[0][32:]
    True
    >>> profile = mh.profile_heads(model, rows, window=64, progress=False)
    >>> "L18H6" in [str(head) for head in profile.select(behaviour="induction").heads(4)]
    True
    """
    check_at_least(1, n=n)
    check_at_least(8, length=length)
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
