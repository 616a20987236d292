"""Batches: units that are computed together, here or in another process, with the same bits in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mechheads.engine.job import Job
from mechheads.engine.plan import Plan
from mechheads.heads import HeadId

Values = Sequence[np.ndarray] | np.ndarray
"""The values of each unit of a batch."""


@dataclass(frozen=True)
class Batch:
    """Units that are computed together.

    Attributes:
        waves: the units of each wave. A unit is anything that pickles and hashes, such as a head and a place.
        places: the places of the pass that these units belong to.
    """

    waves: tuple[tuple[Any, ...], ...]
    places: tuple[int, ...] = (0,)

    @property
    def units(self) -> list[Any]:
        return [unit for wave in self.waves for unit in wave]

    def singly(self) -> list[Batch]:
        """A batch for each unit."""
        return [replace(self, waves=((unit,),)) for unit in self.units]


@runtime_checkable
class Work(Protocol):
    """What an analysis measures in a job, unit by unit."""

    @property
    def job(self) -> Job: ...

    def batches(self) -> list[Batch]:
        """All units in batches; the same ones in every process for the same plan."""
        ...

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[Sequence[Any], Values]]:
        """The values of the units of each batch, batch by batch."""
        ...

    def for_part(self, job: Job) -> Work:
        """The same work for fewer heads of the job; itself if it does not go through the job's heads."""
        ...

    @property
    def factory(self) -> WorkFactory:
        """What does the same work in the same job of another process."""
        ...


@runtime_checkable
class WorkFactory(Protocol):
    """Makes the work of a job; it can be pickled, so that workers can make it too."""

    def __call__(self, job: Job, /) -> Work: ...


@dataclass(frozen=True)
class Cut:
    """Which part of a job is measured, and how it is planned: what differs between parts of it.

    Attributes:
        heads, plan, ledger_suffix: as in ``Job``.
    """

    heads: tuple[HeadId, ...]
    plan: Plan
    ledger_suffix: str

    @classmethod
    def of(cls, job: Job) -> Cut:
        """The part of its job that a job is."""
        return cls(job.heads, job.plan, job.ledger_suffix)

    def apply(self, job: Job) -> Job:
        """The same part of the same job in another process."""
        return replace(job, heads=self.heads, plan=self.plan, ledger_suffix=self.ledger_suffix)
