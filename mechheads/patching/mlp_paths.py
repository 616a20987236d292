"""MLPs as senders of path patching: the output of one layer's MLP is changed at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np

from mechheads.engine.batches import Batch, Kind, Values
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.frozen_heads import MLPs
from mechheads.engine.job import Job
from mechheads.engine.mlps import MlpUnit, MlpWork
from mechheads.patching.path_runs import Paths
from mechheads.patching.receivers import Group


class MlpPathWork(MlpWork):
    """The change of the metric along every path from one MLP [group, prompt]."""

    def __init__(
        self, job: Job, evaluator: Evaluator | None = None, *, groups: Sequence[Group] = (None,), mlps: MLPs
    ) -> None:
        super().__init__(job, evaluator)
        self.groups = groups
        self.mlps: MLPs = mlps

    @property
    def kind(self) -> Kind:
        return partial(MlpPathWork, groups=self.groups, mlps=self.mlps)

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self.job, self.groups, self.mlps)

    def compute(self, batches: Iterable[Batch]) -> Iterator[tuple[list[MlpUnit], Values]]:
        for batch in batches:
            finals = self.job.chunks.run(self._paths.run, batch.units)
            yield batch.units, np.stack([self.evaluator(final) for final in finals], axis=1)
