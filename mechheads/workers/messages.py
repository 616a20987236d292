"""What a driver and its workers send each other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mechheads.model.sources.source import Source


@dataclass(frozen=True)
class Setup:
    """What a worker needs before it can compute.

    Attributes:
        key: the name of this setup.
        source: loads the model.
        device: the kind of device that the driver's model is on, such as ``"cuda"``.
        recipe: the pickled recipe: a function that makes of a model what answers requests (``Ready``).
        path: where modules are looked for, because Ray passes on little of it.
    """

    key: str
    source: Source
    device: str
    recipe: bytes
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))


@dataclass(frozen=True)
class Request:
    """Units to compute after a setup.

    Attributes:
        batch: the units.
        chunk: how many of them fit into memory together, if another worker has found out.
    """

    batch: Any
    chunk: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a worker has done.

    Attributes:
        values: the values of each unit; empty after a setup.
        chunk: how many units fit into memory together, if the worker had to find out.
    """

    values: Sequence[Any] | np.ndarray = ()
    chunk: int | None = None


@dataclass(frozen=True)
class Lost:
    """A worker that ended before it answered; ``why`` says how."""

    why: str


Ready = Callable[[Request], Answer]
"""Computes batches of units on a worker, where everything that it needs is cached."""
