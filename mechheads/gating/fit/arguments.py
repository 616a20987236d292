"""Checks of the arguments of the fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, get_args

Reduce = Literal["mean", "sum"]
Rate = float | tuple[float, float]
ClipSide = Literal["pulled", "both"]


@dataclass(frozen=True)
class Rules:
    """The settings that all sets of gates of a fit share; the attributes are arguments of ``fit_gates``.

    Raises:
        ValueError: naming the first setting that is not valid.
    """

    seeds: tuple[int, ...]
    batch: int
    regulariser: Reduce
    reduce: Reduce
    clip_logits: float
    clip_side: ClipSide
    clip_gradient: float | None
    tolerance: float | None
    order_seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.batch, Integral) or self.batch < 1:
            raise ValueError(f"batch is {self.batch!r}; give the number of items per update, at least 1")
        check_reduce(self.regulariser, "regulariser")
        check_reduce(self.reduce)
        check_positive(self.clip_logits, "clip_logits")
        if self.clip_side not in get_args(ClipSide):
            raise ValueError(f'clip_side is {self.clip_side!r}; choose "pulled" or "both"')
        if self.clip_gradient is not None:
            check_positive(self.clip_gradient, "clip_gradient")
        if self.tolerance is not None and not (isinstance(self.tolerance, Real) and 0 <= self.tolerance < math.inf):
            raise ValueError(f"tolerance is {self.tolerance!r}; give nats, at least 0, or None to make all updates")
        if not isinstance(self.order_seed, Integral) or self.order_seed < 0:
            raise ValueError(f"order_seed is {self.order_seed!r}; give an integer, at least 0")


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds, each given once.

    Raises:
        ValueError: if there are none, one is repeated, or one is not an integer.
    """
    listed: list[Any] = list(seeds) if isinstance(seeds, Iterable) else list(range(seeds))
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(s, Integral) and int(s) >= 0 for s in listed):
        raise ValueError(f"seeds is {seeds!r}; give a number, at least 1, or a list of different integers from 0 up")
    return tuple(map(int, listed))


def check_updates(updates: int | Sequence[int], n: int = 3) -> list[int]:
    """The number of updates of each fit.

    Raises:
        ValueError: if one is below 1, or their number is not the number of fits.
    """
    each: list[Any] = list(updates) if isinstance(updates, Iterable) else [updates] * n
    if len(each) != n or not all(isinstance(count, Integral) and int(count) >= 1 for count in each):
        many = f", or one for each of the {n} fits" if n > 1 else ""
        raise ValueError(f"updates is {updates!r}; give one number of at least 1{many}")
    return list(map(int, each))


def check_rate(rate: Rate, name: str) -> tuple[float, float]:
    """A learning rate at the start and at the end.

    Raises:
        ValueError: if it is not positive at the start, or negative at the end.
    """
    ends = (rate, rate) if isinstance(rate, Real) else tuple(rate)  # type: ignore[arg-type]
    if len(ends) != 2 or not all(isinstance(end, Real) and math.isfinite(end) for end in ends):
        raise ValueError(f"{name} is {rate!r}; give a learning rate, or (start, end)")
    start, end = map(float, ends)
    if start <= 0 or end < 0:
        raise ValueError(f"{name} is {rate!r}; it must be above 0 at the start, and not negative at the end")
    return start, end


def check_positive(value: float, name: str) -> None:
    """Check that this is a number above 0.

    Raises:
        ValueError: if it is not.
    """
    if not (isinstance(value, Real) and 0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a number above 0")


def check_reduce(reduce: str, name: str = "reduce") -> None:
    """Check that this is a known reduction.

    Raises:
        ValueError: if it is not.
    """
    if reduce not in get_args(Reduce):
        raise ValueError(f'{name} is {reduce!r}; choose "mean" or "sum"')
