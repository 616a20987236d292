"""Run a tool and measure time and memory: in this process, or in a worker with any interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks import machine, tools
from benchmarks.workloads import Head, ModelSpec, Workload

ROOT = Path(__file__).absolute().parent.parent


class ToolError(RuntimeError):
    """A tool raised an error or its worker ended; the message is the tool's."""


@dataclass(frozen=True)
class Run:
    """One run of a workload over some heads.

    Attributes:
        values: the change of the metric [head].
        prepare_seconds: time of the cached runs.
        run_seconds: time of the heads.
        peak_bytes: peak memory, minus the memory in use before.
    """

    values: np.ndarray
    prepare_seconds: float
    run_seconds: float
    peak_bytes: int


class Runner(Protocol):
    """A tool that has loaded a model."""

    about: dict[str, Any]
    """How the tool is used (``how``) and the versions of its libraries (``versions``)."""

    def run(self, workload: Workload, heads: Sequence[Head]) -> Run: ...

    def close(self) -> None: ...


class Local:
    """A tool in this process."""

    def __init__(self, key: str, spec: ModelSpec) -> None:
        tool = tools.make(key)
        tool.load(spec)
        self._tool, self._device = tool, spec.device
        self.about = {"how": tool.how, "versions": machine.versions()}

    def run(self, workload: Workload, heads: Sequence[Head]) -> Run:
        level = machine.memory_level(self._device)
        before = machine.measured(lambda: self._tool.prepare(workload), self._device)
        after = machine.measured(lambda: self._tool.run(workload, before.result, heads), self._device)
        return Run(after.result, before.seconds, after.seconds, max(before.peak, after.peak) - level)

    def close(self) -> None:
        """Nothing to end."""


class Remote:
    """A tool in a worker process, which is controlled by lines of JSON.

    Raises:
        ToolError: if the worker ends or the tool raises.
    """

    def __init__(self, key: str, spec: ModelSpec, python: str = sys.executable) -> None:
        import torch

        self._process: Any = subprocess.Popen(
            [python, "-m", "benchmarks.worker", key],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends its workers
        )
        try:
            self.about = self._ask({"spec": asdict(spec), "threads": torch.get_num_threads()})
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload, heads: Sequence[Head]) -> Run:
        answer = self._ask({"workload": asdict(workload), "heads": list(heads)})
        plain: dict[str, Any] = {**answer, "values": np.array(answer["values"])}
        return Run(**plain)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ToolError(f"the worker ended with exit status {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ToolError(answer["error"])
        return answer


def tl3_python() -> str:
    """The interpreter of an environment with TransformerLens 3.9, created in mechheads' cache the first time."""
    from mechheads.model.sources import cache_directory

    folder = cache_directory() / "benchmark-tl3"
    python, ready = folder / "bin" / "python", folder / "ready"
    if not ready.exists():
        print(f"creating an environment with TransformerLens 3.9 in {folder}, once", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        wanted = ["-r", str(ROOT / "benchmarks" / "requirements-tl3.txt"), str(ROOT)]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
        ready.touch()
    return str(python)
