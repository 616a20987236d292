"""Units that share nothing but the model, such as windows of text, computed one by one by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mechheads.engine.dispatch import Batch, Dispatch, setup_of
from mechheads.engine.memory import Chunks
from mechheads.limits import Limits
from mechheads.model.model import Model
from mechheads.scale.ray_cluster import Answer, Request, pool_of

Compute = Callable[[Model, Any], Any]
"""Computes a unit. It is pickled for workers, which have none of the settings here: it holds what it needs.

Its value, which is pickled too, is on the CPU.
"""


class IndependentUnits:
    """Computes units by workers.

    Args:
        compute: computes a unit, which pickles and whose ``str`` is its name in messages.
        limits: with workers.

    Raises:
        ValueError: if there are no workers, or they cannot load the model or compute the units.
    """

    def __init__(self, model: Model, compute: Compute, limits: Limits) -> None:
        if limits.workers is None:
            raise ValueError("limits have no workers; compute the units in this process")
        self._workers = pool_of(limits.workers)
        self._setup = setup_of(model, partial(_Ready, compute=compute))

    def __call__(self, units: Sequence[Any], take: Callable[[int, Any], object]) -> bool:
        """Compute units and take their values as they come.

        Args:
            take: gets the index of a unit and its value.

        Returns:
            Whether Ctrl-C stopped the work after the units that were in flight.

        Raises:
            RuntimeError: if a unit ended every worker that tried it. The values of the others were taken.
        """
        missing = set(range(len(units)))

        def take_numbered(numbered: Sequence[_Numbered], values: Any) -> None:
            for one, value in zip(numbered, values, strict=True):
                missing.remove(one.index)
                take(one.index, value)

        batches = [Batch(((_Numbered(index, unit),),)) for index, unit in enumerate(units)]
        stopped = Dispatch(self._workers, self._setup, Chunks(), take_numbered).run(batches)
        if missing and not stopped:
            raise RuntimeError(
                f"workers: {units[min(missing)]} has no value, and the work cannot go on without it; leave workers "
                "out, or give fewer of them"
            )
        return stopped


def in_order(take: Callable[[int, Any], object]) -> Callable[[int, Any], None]:
    """Takes values by their index, in whatever order they come."""
    ready, taken = dict[int, Any](), [0]

    def take_later(index: int, value: Any) -> None:
        ready[index] = value
        while taken[0] in ready:
            take(taken[0], ready.pop(taken[0]))
            taken[0] += 1

    return take_later


@dataclass(frozen=True)
class _Numbered:
    """A unit and its index."""

    index: int
    unit: Any

    def __str__(self) -> str:
        return str(self.unit)


@dataclass(frozen=True)
class _Ready:
    """Computes units with a worker's model."""

    model: Model
    compute: Compute

    def __call__(self, request: Request) -> Answer:
        return Answer([self.compute(self.model, one.unit) for one in request.batch.units])
