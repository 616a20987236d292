"""The benchmark for machines with GPUs: its parts run on a CPU, and over simulated devices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import mechheads as mh
from benchmarks import gpu
from benchmarks.offload import make_model
from support.simulated_devices import simulation

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gpu")
    make_model(made, 2, 64)
    return made


def test_its_parts_run_on_a_cpu(folder: Path) -> None:
    model, pairs = mh.load(folder, backend="bridge"), gpu.pairs_of(8, 6)
    size = sum(weight.nbytes for weight in model.model.parameters())
    alone = gpu.timed(model, pairs)
    said = gpu.against_transformerlens(model, pairs, alone)
    assert "32 heads, 8 pairs" in said and float(said.rsplit(" ", 1)[1]) < 1e-4
    assert "planned" in gpu.memory(model, pairs)
    said = gpu.from_disk(mh.load(folder, max_memory=int(0.9 * size)), pairs, alone)
    assert float(said.rsplit(" ", 1)[1]) < 1e-4


def test_the_spread_model_runs_over_simulated_devices(folder: Path) -> None:
    pairs = gpu.pairs_of(2, 4)
    alone = gpu.timed(mh.load(folder, backend="bridge"), pairs)
    with simulation():
        model = mh.load(folder, device_map="auto", max_memory={"lazy:0": "1 GB", "lazy:1": "1 GB"})
        said = gpu.spread(model, pairs, alone)
    assert "spread over 2 devices" in said and float(said.rsplit(" ", 1)[1]) < 1e-4


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"^1$"):
        gpu.main()
    said = capsys.readouterr()
    assert said.out == "" and "no GPU" in said.err
