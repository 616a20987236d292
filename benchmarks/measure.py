"""Measure workloads: the tools run in turns, several times, and their times are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import machine
from benchmarks.flops import Shape
from benchmarks.runner import Run, Runner, ToolError
from benchmarks.tools import NAMES
from benchmarks.workloads import Head, Workload

OURS = "mechheads"
SAMPLE = {"W3": 9, "W6": 9}
"""The number of heads that the other tools run; 18 for workloads that are not listed."""

Say = Callable[[str], None]


@dataclass
class Measurement:
    """The measurement of one workload on one model. Runs are added as they end; an interruption keeps them.

    Attributes:
        heads: all heads of the sweep, which mechheads runs.
        sampled: the heads that the other tools run.
        runs: the runs of each tool, by its key, without warm-ups.
        errors: why a tool gave no result.
        speeds: FLOP/s of matrix products, measured once per repeat.
    """

    workload: Workload
    shape: Shape
    heads: list[Head]
    sampled: list[Head]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    speeds: list[dict[str, float]] = field(default_factory=list)

    def heads_of(self, key: str) -> list[Head]:
        """The heads that a tool runs."""
        return self.heads if key == OURS else self.sampled

    def to_json(self) -> dict[str, Any]:
        """All measured values, with medians, differences and ratios to the limit."""
        needed = self.workload.flops(self.shape, self.heads)
        speed = statistics.median(max(each.values()) for each in self.speeds) if self.speeds else None
        limit = needed / speed if speed else None
        tools = {key: self._tool(key, runs, limit) for key, runs in self.runs.items() if runs}
        tools |= {key: {"error": error} for key, error in self.errors.items()}
        workload = self.workload
        return {
            "workload": workload.name,
            "title": workload.title,
            "prompts": len(workload.base),
            "tokens": workload.n_tokens,
            "first_difference": workload.differ,
            "first_change": workload.changed,
            "receiver": workload.receiver,
            "heads": len(self.heads),
            "sampled_heads": self.sampled,
            "flops_needed": needed,
            "matmul_flops_per_second": speed,
            "matmul_each": self.speeds,
            "limit_seconds": limit,
            "tools": tools,
        }

    def _tool(self, key: str, runs: list[Run], limit: float | None) -> dict[str, Any]:
        factor = len(self.heads) / len(self.heads_of(key))
        seconds = [run.prepare_seconds + run.run_seconds * factor for run in runs]
        median = statistics.median(seconds)
        about: dict[str, Any] = {
            "name": NAMES[key],
            "heads_run": len(self.heads_of(key)),
            "prepare_seconds": [run.prepare_seconds for run in runs],
            "run_seconds": [run.run_seconds for run in runs],
            "seconds_all_heads": seconds,
            "median_seconds": median,
            "ratio_to_limit": median / limit if limit else None,
            "peak_bytes": statistics.median(run.peak_bytes for run in runs),
            "sampled_values": self._sampled(key).tolist(),
        }
        if self.runs.get(OURS) and key != OURS:
            ours = self._tool(OURS, self.runs[OURS], limit)
            about["times_slower_than_mechheads"] = median / ours["median_seconds"]
            about["largest_difference"] = float(np.abs(self._sampled(OURS) - self._sampled(key)).max())
        return about

    def _sampled(self, key: str) -> np.ndarray:
        """The values of the sampled heads in the last run."""
        ran = self.heads_of(key)
        return self.runs[key][-1].values[[ran.index(head) for head in self.sampled]]


def measure(
    measurement: Measurement, runners: Mapping[str, Runner], repeats: int, device: str, say: Say
) -> Measurement:
    """Run every tool once on two heads to warm up, then all tools in turns, ``repeats`` times.

    A tool that raises an error is left out from then on, and its error is kept.
    """
    workload = measurement.workload
    for key, runner in runners.items():
        _attempt(measurement, key, runner, measurement.heads_of(key)[:2], say)
    for repeat in range(repeats):
        measurement.speeds.append(machine.matmul_speed(device))
        for key, runner in runners.items():
            if key in measurement.errors:
                continue
            run = _attempt(measurement, key, runner, measurement.heads_of(key), say)
            if run is not None:
                measurement.runs.setdefault(key, []).append(run)
                say(f"{workload.name}, run {repeat + 1} of {repeats}: {_line(measurement, key, run)}")
    return measurement


def _attempt(measurement: Measurement, key: str, runner: Runner, heads: Sequence[Head], say: Say) -> Run | None:
    try:
        run = runner.run(measurement.workload, heads)
    except Exception as error:
        measurement.errors[key] = told(error)
        say(f"{measurement.workload.name}: {NAMES[key]} is left out: {measurement.errors[key]}")
        return None
    return run


def told(error: Exception) -> str:
    """The class and the message of an error; the message of a ``ToolError`` has both already."""
    return str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"


def _line(measurement: Measurement, key: str, run: Run) -> str:
    total, part = len(measurement.heads), len(measurement.heads_of(key))
    seconds = run.prepare_seconds + run.run_seconds
    if part == total:
        return f"{NAMES[key]} {seconds:.2f} s for {total} heads"
    scaled = run.prepare_seconds + run.run_seconds * total / part
    return f"{NAMES[key]} {seconds:.2f} s for {part} heads, scaled to {scaled:.1f} s for {total}"
