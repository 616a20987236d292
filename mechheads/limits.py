"""``Limits``: how much memory an analysis may use, and how its work is split."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

DEFAULT_BUDGET = 4 * 2**30
_UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def budget_bytes(budget: int | str | None, name: str = "budget") -> int:
    """A memory budget in bytes, from a number, ``"2 GB"``, or None for the default of 4 GB.

    Args:
        name: the argument's name, for messages.

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
        raise ValueError(f'{name} is {budget!r}; give a number of bytes or a text such as "2 GB"')
    return int(size)


@runtime_checkable
class Workers(Protocol):
    """Replicas of a model that compute units of an analysis, such as ``mh.scale.Local``."""

    @property
    def replicas(self) -> int:
        """How many there are; they have the numbers 0, 1, ..."""
        ...

    def submit(self, replica: int, request: Any) -> None:
        """Send a request to a replica that has no other one; it is started first if it does not run."""
        ...

    def collect(self, seconds: float) -> list[tuple[int, Any]]:
        """The answers that have come, each with its replica; waits for the first one for up to this time."""
        ...

    def stop(self, replica: int | None = None) -> None:
        """Stop a replica at once, whatever it does, or all replicas; nothing more comes from it."""
        ...


@dataclass(frozen=True)
class Patience:
    """How long a worker may take before it is stopped and its units go to another one.

    Attributes:
        start: seconds to load the model and to cache the runs.
        batch: seconds for some units together, at least.
        flops: the floating-point operations in a second of the slowest worker that is waited for.
        times: how many times as long as the slowest units so far, for the same work.

    >>> Patience(start=60).batch
    60.0
    """

    start: float = 1800.0
    batch: float = 60.0
    flops: float = 1e9
    times: float = 20.0


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
        workers: what computes the units; None for this process.
        patience: how long workers may take.
        part: compute only this part of the batches, such as ``(3, 16)`` for the third of sixteen; other units stay NaN.

    >>> Limits.of("2 GB").memory == 2 * 2**30
    True
    """

    memory: int = DEFAULT_BUDGET
    tokens: int | None = None
    logits: int = 2**24
    logit_rows: int = 256
    run_tokens: int = 1024
    workers: Workers | None = None
    patience: Patience = Patience()
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            raise ValueError(f"part is {self.part}; give its number, from 1, and how many there are, such as (3, 16)")

    @classmethod
    def of(cls, budget: Budget, workers: Workers | None = None) -> Limits:
        """The limits for a ``budget`` argument and, if these are given, for workers.

        Raises:
            ValueError: if the budget is less than one byte, not finite, or cannot be read, or workers are not workers.
        """
        limits = budget if isinstance(budget, Limits) else cls(memory=budget_bytes(budget))
        if workers is None:
            return limits
        if not isinstance(workers, Workers):
            raise ValueError(f"workers is {workers!r}; give replicas of the model, such as mh.scale.Local(2)")
        return replace(limits, workers=workers)

    @property
    def in_one_process(self) -> Limits:
        """The same limits without workers."""
        return replace(self, workers=None)


DEFAULT_LIMITS = Limits()

Budget = int | str | Limits | None
"""The type of ``budget`` arguments: bytes, a text such as "2 GB", ``Limits``, or None for 4 GB."""
