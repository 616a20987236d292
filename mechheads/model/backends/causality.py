"""Check that a model is causal: nothing later, and no other prompt, changes what it computes for a token.

Prompts of unequal length are padded at the end and run together without a mask, and changes are followed from the token
where they begin. Both are right in a causal decoder only. Configs can turn on attention in both directions, and code of
a model's own can do anything, so the model is tried.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.base import Backend

_TOKENS = 12
"""The last of so many tokens is not the first of a block of any usual size, so that it has others beside it."""
_ATTEMPTS = 3
"""Rounding can send a token to another expert, which is seen on one prompt, but not on each of several."""


def check_causal(backend: Backend) -> None:
    """Check once that the states of a token depend on no later token and on no other row.

    A model with hooks set by its user is tried together with them. If these fail on our tokens, it cannot be tried.

    Raises:
        ValueError: if they do; the message says on which.
    """
    if backend.causal:
        return
    try:
        with torch.no_grad():
            wrong = _what_is_wrong(backend)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        if not backend.carries_hooks:
            raise
        wrong = None
    if wrong is not None:
        raise ValueError(f"{backend.about} cannot be read: {wrong}; mechheads reads causal decoders")
    backend.causal = True


def _what_is_wrong(backend: Backend) -> str | None:
    pos = min(_TOKENS, backend.sizes.n_ctx)
    starts = {0: pos - 1, 1: pos // 2, 2: 1}  # the first token that is another one, by row
    many = backend.trial_tokens(3 * _ATTEMPTS, pos)
    wrong = None
    for first in many.split(3):
        other = first.clone()
        for row, start in starts.items():
            other[row, start:] = (other[row, start:] + max(1, backend.sizes.d_vocab // 3)) % backend.sizes.d_vocab
        wrong = _compare(backend, first, other, starts)
        if wrong is None:
            break
    return wrong


def _compare(
    backend: Backend, first: Int[Tensor, "3 pos"], other: Int[Tensor, "3 pos"], starts: dict[int, int]
) -> str | None:
    """What two batches show that have the same tokens up to some token of each row."""
    usual = backend.run(first)
    if not usual.isfinite().all():
        return None  # damaged weights, which is said elsewhere
    changed = backend.run(other)
    limit = 1e-3
    apart = max(_apart(usual[row, :start], changed[row, :start], usual) for row, start in starts.items())
    if apart > limit and usual.dtype.itemsize < 4:
        limit = max(0.1, 4 * _apart(usual, backend.run(first.flip(0)).flip(0), usual))  # what rounding does
    if not apart > limit:
        return None
    if _apart(usual, backend.run(first), usual) > limit:
        return None if backend.carries_hooks else "the same tokens give other numbers each time"
    alone = first.clone()
    alone[1:] = other[1:]
    if _apart(usual[0], backend.run(alone)[0], usual) > limit:
        return "the numbers of a prompt depend on the other prompts that run with it"
    return "what it computes for a token depends on later tokens, as in attention in both directions"


def _apart(new: Float[Tensor, "*rows d_model"], old: Float[Tensor, "*rows d_model"], all_: Tensor) -> float:
    """The largest difference, in standard deviations of all states."""
    if not new.numel():
        return 0.0
    return float((new - old).float().abs().max() / all_.float().std().clamp_min(1e-6))
