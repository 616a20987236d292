"""``Limits``: how much memory an analysis may use, and how its work is split."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_BUDGET = 4 * 2**30
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def budget_bytes(budget: int | str | None) -> int:
    """A memory budget in bytes, from a number, ``"2 GB"``, or None for the default of 4 GB.

    Raises:
        ValueError: if it is less than one byte, infinite, or cannot be read.
    """
    if budget is None:
        return DEFAULT_BUDGET
    size: float = -1
    if isinstance(budget, str):
        if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)?\s*", budget.upper()):
            size = float(match[1]) * _UNITS[match[2] or ""]
    else:
        size = budget
    if not 1 <= size < float("inf"):
        raise ValueError(f'budget is {budget!r}; give a number of bytes or a text such as "2 GB"')
    return int(size)


@dataclass(frozen=True)
class Limits:
    """How much memory an analysis may use, and how its work is split.

    The split affects speed and memory, and changes results only by rounding. The public functions take ``Limits`` as
    ``budget=``, in place of a number of bytes or a text such as "2 GB".

    Attributes:
        memory: bytes for everything except the model: cached runs, activations, logits.
        tokens: how many tokens go through a block together; None for as many as the device needs to be fast.
        logits: how many logits are computed together (2**24 take 64 MB in float32).
        logit_rows: how many rows of logits are collected and computed together, because small products are slow.
        run_tokens: how many tokens a cached run computes at a time.

    >>> Limits.of("2 GB").memory == 2 * 2**30
    True
    """

    memory: int = DEFAULT_BUDGET
    tokens: int | None = None
    logits: int = 2**24
    logit_rows: int = 256
    run_tokens: int = 1024

    @classmethod
    def of(cls, budget: Budget) -> Limits:
        """The limits for a ``budget`` argument.

        Raises:
            ValueError: if the budget is less than one byte, not finite, or cannot be read.
        """
        return budget if isinstance(budget, Limits) else cls(memory=budget_bytes(budget))


DEFAULT_LIMITS = Limits()

Budget = int | str | Limits | None
"""The type of ``budget`` arguments: bytes, a text such as "2 GB", ``Limits``, or None for 4 GB."""
