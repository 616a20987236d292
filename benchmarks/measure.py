"""Measure workloads: the tools run in turns, for as long as there is time, and their times are compared."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.stats import quantile_test

from benchmarks import machine
from benchmarks.flops import Shape
from benchmarks.runner import LoadedTool, Run
from benchmarks.tools import NAMES
from benchmarks.workloads import Head, Workload

OURS = "mechheads"
SAMPLE = {"W3": 3, "W6": 2, "Ships-U": 3, "Ships-S": 3, "labels": 3}
"""The number of heads that the other tools run; 6 for workloads that are not listed."""

Say = Callable[[str], None]


@dataclass
class Measurement:
    """The measurement of one workload on one model. Runs are added as they end; an interruption keeps them.

    Attributes:
        heads: all heads of the sweep, which mechheads runs.
        sampled: the heads that the other tools run.
        runs: the runs of each tool, by its key, without warm-ups.
        errors: why a tool gave no result.
        speeds: FLOP/s of matrix products, measured once per round; ``own_speeds``: of products as a sweep has them.
    """

    workload: Workload
    shape: Shape
    heads: list[Head]
    sampled: list[Head]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    speeds: list[dict[str, float]] = field(default_factory=list)
    own_speeds: list[float] = field(default_factory=list)

    def heads_of(self, key: str) -> list[Head]:
        """The heads that a tool runs."""
        return self.heads if key == OURS or self.workload.whole else self.sampled

    def to_json(self) -> dict[str, Any]:
        """All measured values, with medians, differences and ratios to the limit."""
        needed = self.workload.flops(self.shape, self.heads)
        speed = statistics.median(max(each.values()) for each in self.speeds) if self.speeds else None
        limit = needed / speed if needed and speed else None
        own = statistics.median(self.own_speeds) if self.own_speeds else None
        limits = {"ratio_to_limit": limit, "ratio_to_own_limit": needed / own if needed and own else None}
        tools = {key: self._tool(key, runs, limits) for key, runs in self.runs.items() if runs}
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
            "own_flops_per_second": own,
            "own_limit_seconds": limits["ratio_to_own_limit"],
            "tools": tools,
        }

    def _tool(self, key: str, runs: list[Run], limits: Mapping[str, float | None]) -> dict[str, Any]:
        factor = len(self.heads) / len(self.heads_of(key))
        seconds = [run.prepare_seconds + run.run_seconds * factor for run in runs]
        metadata: dict[str, Any] = {
            "name": NAMES[key],
            "heads_run": len(self.heads_of(key)),
            "prepare_seconds": [run.prepare_seconds for run in runs],
            "run_seconds": [run.run_seconds for run in runs],
            "seconds_all_heads": seconds,
            "median_seconds": statistics.median(seconds),
            "sampled_values": self._sampled(key).tolist(),
        }
        for name, limit in limits.items():
            if limit:
                metadata |= middle(name, [one / limit for one in seconds])
        if self.runs.get(OURS) and key != OURS:
            ours = self._tool(OURS, self.runs[OURS], limits)["seconds_all_heads"]
            slower = [one / our for one, our in zip(seconds, ours, strict=False)]  # one of them may have failed later
            metadata |= middle("times_slower_than_mechheads", slower)
            metadata["largest_difference"] = float(np.abs(self._sampled(OURS) - self._sampled(key)).max())
        return metadata

    def _sampled(self, key: str) -> np.ndarray:
        """The values of the sampled heads in the last run."""
        ran = self.heads_of(key)
        return self.runs[key][-1].values[[ran.index(head) for head in self.sampled]]


def middle(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The median of one value per round by its name, and its interval: 95%, by the sign test.

    With fewer than six rounds there is no such interval, and it goes from the smallest to the largest value; with three
    rounds this holds the median in three cases of four.
    """
    low, high = quantile_test(values).confidence_interval(0.95)
    ends = [min(values) if math.isnan(low) else float(low), max(values) if math.isnan(high) else float(high)]
    return {name: statistics.median(values), f"{name}_interval": ends}


def measure(
    measurement: Measurement, runners: Mapping[str, LoadedTool], seconds: float, least: int, device: str, say: Say
) -> Measurement:
    """Run every tool once on one head to warm up, then all tools in turns, as often as fits into ``seconds``.

    There are at least ``least`` rounds. A tool that raises an error is left out from then on, and its error is kept.
    """
    until = time.monotonic() + seconds
    for key, runner in runners.items():
        _attempt(measurement, key, runner, measurement.heads_of(key)[:1], say)
    number, longest = 0, 0.0
    while number < least or time.monotonic() + longest < until:
        start = time.monotonic()
        shape = measurement.shape
        measurement.speeds.append(machine.matmul_speed(device))
        measurement.own_speeds.append(machine.sweep_speed(shape.products, shape.n_layers, device))
        number += 1
        for key, runner in runners.items():
            if key in measurement.errors:
                continue
            run = _attempt(measurement, key, runner, measurement.heads_of(key), say)
            if run is not None:
                measurement.runs.setdefault(key, []).append(run)
                say(f"{measurement.workload.name}, round {number}: {_line(measurement, key, run)}")
        longest = max(longest, time.monotonic() - start)
        if set(runners) <= set(measurement.errors):
            break
    return measurement


def _attempt(measurement: Measurement, key: str, runner: LoadedTool, heads: Sequence[Head], say: Say) -> Run | None:
    try:
        run = runner.run(measurement.workload, heads)
    except Exception as error:
        measurement.errors[key] = told(error)
        say(f"{measurement.workload.name}: {NAMES[key]} is left out: {measurement.errors[key]}")
        return None
    return run


def told(error: Exception) -> str:
    """The class and the message of an error."""
    return f"{type(error).__name__}: {error}"


def _line(measurement: Measurement, key: str, run: Run) -> str:
    total, part = len(measurement.heads), len(measurement.heads_of(key))
    seconds = run.prepare_seconds + run.run_seconds
    if part == total:
        return f"{NAMES[key]} {seconds:.2f} s for {total} heads"
    scaled = run.prepare_seconds + run.run_seconds * total / part
    return f"{NAMES[key]} {seconds:.2f} s for {part} heads, scaled to {scaled:.1f} s for {total}"
