"""What a driver and its workers send each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mechheads.model.model import Model
from mechheads.model.sources.source import Source


@runtime_checkable
class Ready(Protocol):
    """A recipe on a model: everything is cached, and batches of units can be computed."""

    @property
    def chunk(self) -> int | None:
        """How many units fit into memory together, if there once was not enough."""
        ...

    def compute(self, cut: Any, batch: Any, chunk: int | None) -> Sequence[np.ndarray]:
        """The values of each unit of a batch.

        Args:
            cut: which part of the work is measured, and its plan.
            batch: the units.
            chunk: how many of them fit into memory together, if another worker has found out.
        """
        ...


@runtime_checkable
class Recipe(Protocol):
    """Work that can be sent to another process."""

    def ready(self, model: Model) -> Ready:
        """The work on a model."""
        ...


@dataclass(frozen=True)
class Setup:
    """What a worker needs before it can compute.

    Attributes:
        key: the name of this setup.
        source: loads the model.
        device: the kind of device that the driver's model is on, such as ``"cuda"``.
        recipe: the pickled ``Recipe``.
        path: where modules are looked for, because Ray passes on little of it.
    """

    key: str
    source: Source
    device: str
    recipe: bytes
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))


@dataclass(frozen=True)
class Request:
    """Units to compute after a setup; see ``Ready.compute``."""

    cut: Any
    batch: Any
    chunk: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a worker has done.

    Attributes:
        values: the values of each unit; empty after a setup.
        chunk: how many units fit into memory together, if the worker had to find out.
    """

    values: Sequence[np.ndarray] = ()
    chunk: int | None = None


@dataclass(frozen=True)
class Lost:
    """A worker that ended before it answered; ``why`` says how."""

    why: str
