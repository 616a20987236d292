"""The interface of a tool, and code that several tools share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.workloads import Head, ModelSpec, Workload

if TYPE_CHECKING:
    from mechheads import Model


class Tool(Protocol):
    """A way to run a workload. Everything that ``prepare`` and ``run`` do is timed."""

    how: str
    """How the tool is used, in one line."""

    def load(self, spec: ModelSpec) -> None:
        """Load a model; not timed."""
        ...

    def prepare(self, workload: Workload) -> Any:
        """The cached runs, which do not depend on the number of heads."""
        ...

    def run(self, workload: Workload, prepared: Any, heads: Sequence[Head]) -> np.ndarray:
        """What the workload measures of each head [head].

        It is the change of the metric, averaged over prompts; for ``gates`` the gate, and for ``labels`` the share of
        pairs that are mapped.
        """
        ...


@lru_cache(maxsize=1)
def mechheads_model(spec: ModelSpec) -> Model:
    """The model as mechheads loads it; the tools of one process share it."""
    import mechheads as mh

    return mh.load(spec.folder, device=spec.device)


class WithoutPreparing:
    """A tool on mechheads' model that has nothing to do before its heads run."""

    def load(self, spec: ModelSpec) -> None:
        self.model = mechheads_model(spec)

    def prepare(self, workload: Workload) -> None:
        return None


def ids(rows: list[list[int]], device: str) -> Tensor:
    """Token ids [prompt, pos]."""
    return torch.tensor(rows, device=device)


EPSILON = 1e-4
"""What Ships multiply q or z by."""


class Score:
    """The metric of the logits at the last position, minus the metric of the base run, averaged over prompts."""

    def __init__(self, workload: Workload, base: Tensor, device: str) -> None:
        self._logits = base
        if workload.answer is not None:
            self._row = torch.arange(len(base), device=device)
            self._answer = torch.tensor(workload.answer, device=device)
            self._wrong = torch.tensor(workload.wrong, device=device)
        self._is_kl = workload.answer is None
        self.base = 0.0 if self._is_kl else float(self.value(base))

    def value(self, logits: Tensor) -> Tensor:
        """The metric itself, averaged over prompts; logits [prompt, d_vocab]."""
        if self._is_kl:
            log_p, log_q = (each.float().log_softmax(-1) for each in (self._logits, logits))
            return (log_p.exp() * (log_p - log_q)).sum(-1).mean()
        return (logits[self._row, self._answer] - logits[self._row, self._wrong]).mean()

    def __call__(self, logits: Tensor) -> float:
        return float(self.value(logits)) - self.base
