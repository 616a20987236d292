"""Run a tool on a model and measure its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine, tools
from benchmarks.workloads import Head, ModelSpec, Workload

ROOT = Path(__file__).absolute().parent.parent


@dataclass(frozen=True)
class Run:
    """One run of a workload over some heads."""

    values: np.ndarray  # the change of the metric [head]
    prepare_seconds: float  # time of the cached runs
    run_seconds: float  # time of the heads


class LoadedTool:
    """A tool that has loaded a model; ``how`` says how it is used."""

    def __init__(self, key: str, spec: ModelSpec) -> None:
        self._tool: Any = tools.make(key)
        self._tool.load(spec)
        self._device, self.how = spec.device, self._tool.how

    def run(self, workload: Workload, heads: Sequence[Head]) -> Run:
        before = machine.measured(lambda: self._tool.prepare(workload), self._device)
        after = machine.measured(lambda: self._tool.run(workload, before.result, heads), self._device)
        return Run(after.result, before.seconds, after.seconds)
