"""``Limits``: how much memory an analysis may use, and how its work is split."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Protocol, runtime_checkable

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
class Replicas(Protocol):
    """Replicas of a model that compute units of an analysis: ``mh.scale.Ray``, which imports this file."""

    def stop(self) -> None:
        """Stop all of them."""
        ...


Workers = int | str | Replicas
"""The type of ``workers`` arguments: a number for this machine, the address of a Ray cluster, or ``mh.scale.Ray``."""


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
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            raise ValueError(f"part is {self.part}; give its number, from 1, and how many there are, such as (3, 16)")
        if self.workers is not None:
            check_workers(self.workers)

    @classmethod
    def of(cls, budget: Budget, workers: Workers | None = None) -> Limits:
        """The limits for a ``budget`` argument and, if these are given, for workers.

        Raises:
            ValueError: if the budget is less than one byte, not finite, or cannot be read, or workers are not workers.
            ImportError: if ray, which runs workers, is not installed.
        """
        limits = budget if isinstance(budget, Limits) else cls(memory=budget_bytes(budget))
        return limits if workers is None else replace(limits, workers=workers)

    @property
    def in_one_process(self) -> Limits:
        """The same limits without workers."""
        return replace(self, workers=None)


DEFAULT_LIMITS = Limits()


def check_workers(workers: object) -> None:
    """Check a ``workers`` argument, without the time that importing ray takes.

    Raises:
        ValueError: if it is neither a number, an address nor workers.
        ImportError: if ray is not installed.
    """
    if isinstance(workers, int):
        known = workers >= 1
    elif isinstance(workers, str):
        known = re.fullmatch(r"auto|(ray://)?[^\s/]+:\d+", workers) is not None
    else:
        known = isinstance(workers, Replicas)
    if not known:
        raise ValueError(
            f"workers is {workers!r}; give a number of workers on this machine, such as 2, the address of a Ray "
            'cluster, such as "10.0.0.5:6379" or "auto", or mh.scale.Ray(...)'
        )
    check_ray()


def check_ray() -> None:
    """Check that ray is there.

    Raises:
        ImportError: if it is not installed.
    """
    if find_spec("ray") is None:
        raise ImportError('workers need ray: pip install "mechheads[ray]"; or leave workers out')


Budget = int | str | Limits | None
"""The type of ``budget`` arguments: bytes, a text such as "2 GB", ``Limits``, or None for 4 GB."""
