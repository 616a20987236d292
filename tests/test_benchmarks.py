"""The benchmark of speed: tools that agree, rounds, intervals, and the tables of what it records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig

import benchmarks.__main__ as command
from benchmarks import machine, table
from benchmarks.flops import Shape, gate_update
from benchmarks.measure import Measurement, measure
from benchmarks.runner import LoadedTool, Run
from benchmarks.tools import KINDS, NAMES
from benchmarks.workloads import Head, ModelSpec, Workload

ROOT = Path(__file__).parent.parent
SHAPE = Shape(3, 4, 2, 8, 32, 64, 3, 100)
BASE, SOURCE = [[5, 6, 7, 8], [9, 10, 11, 12]], [[5, 6, 8, 9], [9, 10, 13, 14]]
PATCHING = Workload("W1", "activation", BASE, SOURCE, [5, 6], [7, 8])
TRIED = [
    PATCHING,
    Workload("W6", "activation", BASE, SOURCE, [5, 6], [7, 8], last_only=True),
    Workload("W2a", "path", BASE, SOURCE, [5, 6], [7, 8], receiver="final"),
    Workload("W2b", "path", BASE, SOURCE, [5, 6], [7, 8], receiver=(2, 1)),
    Workload("W3", "ablation", BASE),
    Workload("Ships-U", "undifferentiated", BASE),
    Workload("Ships-S", "scaling", BASE),
    Workload("gates", "gates", BASE, None, [5, 6]),
]


class Made:
    """A tool that takes a given time for each head."""

    def __init__(self, seconds: float, fails: bool = False) -> None:
        self.seconds, self.fails, self.calls = seconds, fails, 0

    def run(self, workload: Workload, heads: Sequence[Head]) -> Run:
        self.calls += 1
        if self.fails and self.calls > 2:
            raise RuntimeError("it broke")
        return Run(np.ones(len(heads)), 0.0, self.seconds * len(heads))


loaded_tool = cache(LoadedTool)


@pytest.fixture(autouse=True)
def a_machine_of_known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are timed and garbage is collected in the tests of them only."""
    monkeypatch.setattr(machine, "gc", SimpleNamespace(collect=lambda: None))
    monkeypatch.setattr(machine, "matmul_speed", lambda device: {"made": 2e11})
    monkeypatch.setattr(machine, "sweep_speed", lambda products, n_layers, device: 1e11)


def stored(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))


def measured(runners: dict[str, Any], least: int = 3) -> Measurement:
    heads = PATCHING.heads(SHAPE)
    return measure(Measurement(PATCHING, SHAPE, heads, heads[:2]), runners, 0, least, "cpu", lambda text: None)


def recorded(*names: str) -> dict[str, Any]:
    """What the command writes after every tool ran one workload on models of these names."""
    runners = {key: Made(number) for number, key in enumerate(NAMES, 1)}
    found = measured(runners).to_json()
    metadata = {
        "machine": {"processor": "P", "cores": 2, "threads": 2},
        "versions": {"python": "3.11"},
        "note": "Note.",
    }
    metadata |= {"dtype": "float32", "matmul_flops_per_second": 2e11, "quick": False}
    models = [{"model": name, "shape": vars(SHAPE), "tools": {}, "results": [found]} for name in names]
    return json.loads(json.dumps({"provenance": metadata, "interrupted": False, "models": models}))


@pytest.mark.parametrize("workload", TRIED, ids=lambda workload: workload.name)
def test_the_tools_here_measure_the_same(workload: Workload, tiny: Callable[[str], Path]) -> None:
    spec = ModelSpec("tiny", str(tiny("llama")), "cpu", (2, 1), trained=False)
    shape = Shape.of(AutoConfig.from_pretrained(spec.folder, trust_remote_code=False))
    heads = workload.heads(shape)
    keys = [key for key in ("mechheads", "tl4", "plain") if workload.kind in KINDS[key]]
    values = [loaded_tool(key, spec).run(workload, heads).values for key in keys]
    assert len(values) == 2 and np.ptp(values[0]) > 0
    np.testing.assert_allclose(values[0], values[1], atol=2e-5)
    assert workload.flops(shape, heads)


def test_rounds_are_taken_in_turns_and_a_tool_that_fails_is_left_out() -> None:
    good, bad = Made(1.0), Made(2.0, fails=True)
    found = measured({"mechheads": good, "tl4": bad}).to_json()
    assert good.calls == 1 + 3 and bad.calls == 1 + 2
    assert found["tools"]["tl4"] == {"error": "RuntimeError: it broke"}
    assert found["tools"]["mechheads"]["seconds_all_heads"] == [12.0] * 3


def test_the_limit_of_gates() -> None:
    """Two passes, but the first block's queries, keys and values have none backward."""
    one = Shape(1, 1, 1, 2, 4, 8, 2, 10)
    keys_values, rest, unembed = 3 * 2 * 2 * 4 * 2, 2 * (2 * 4 * 2) + 2 * (2 * 4 * 8) + 4 * 2 * 3, 2 * 4 * 10
    first_block = 3 * (3 * 2 * 4 * 2) + 4 * 2 * 6
    assert gate_update(one, 3) == 2 * (keys_values + rest + unembed) - first_block


def test_both_limits_are_the_needed_operations_at_their_speed() -> None:
    found = measured({"mechheads": Made(1.0)}).to_json()
    for limit, speed in (("limit", "matmul"), ("own_limit", "own")):
        seconds = found["flops_needed"] / found[f"{speed}_flops_per_second"]
        assert found[f"{limit}_seconds"] == pytest.approx(seconds)
        assert found["tools"]["mechheads"][f"ratio_to_{limit}"] == pytest.approx(12 / seconds)


def test_the_readme_has_the_recorded_factors() -> None:
    results, gpu = (stored(name) for name in ("results", "gpu"))
    text = (ROOT / "README.md").read_text("utf-8")
    assert table.in_readme(text, table.readme(results, gpu)) == text, "run `python -m benchmarks.table`"
    made = table.in_readme(text, table.readme(recorded("first", "second"), gpu))
    assert "| patching every head | 2.0 (2.0 to 2.0) | 2.0 (2.0 to 2.0) | 23 |\n" in made
    assert made.count("not measured") == 2 * (len(table.IN_README) - 1)


@pytest.mark.slow
def test_the_command_runs_in_a_small_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W1 and gates on the default model."""
    out = tmp_path / "out.json"
    options = ["--workloads", "W1", "gates", "--tools", "mechheads", "tl4", "plain", "--models", "default"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", *options, "--out", str(out)])
    command.main()
    (model,) = json.loads(out.read_text())["models"]
    assert [one["workload"] for one in model["results"]] == ["W1", "gates"]
    for one in model["results"]:
        assert len(one["tools"]) == 2 and not [tool for tool in one["tools"].values() if "error" in tool]
