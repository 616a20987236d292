"""The benchmark for machines with GPUs: its parts run on a CPU, and over simulated devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import mechheads as mh
from benchmarks import gpu
from support.simulated_devices import simulation

pytestmark = pytest.mark.slow


def test_it_runs_on_a_cpu_in_a_small_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["gpu", "--small", "--device", "cpu", "--out", str(out)])
    gpu.main()
    parts = json.loads(out.read_text())["parts"]
    assert not [row for part in parts.values() for row in part.values() if "failed" in str(row)]
    analyses, sweeps, several = parts.values()
    assert all(row["float32"] in (0, "the same") or row["float32"] != row["float32"] for row in analyses.values())
    compared = [row for row in sweeps.values() if "times as long" in row]
    assert len(compared) == 9 and all(row["apart"] < 1e-3 for row in compared)
    assert several["on disk"]["apart"] < 1e-4


def test_the_spread_model_runs_over_simulated_devices(tmp_path: Path) -> None:
    gpu.make_model(tmp_path, 2, 64)
    pairs = gpu.pairs_of(2, 4)
    alone = gpu.timed(mh.load(tmp_path, backend="bridge"), pairs)
    with simulation():
        first = ("model.embed_tokens", "model.rotary_emb", "model.layers.0")
        last = ("model.layers.1", "model.norm", "lm_head")
        model = mh.load(tmp_path, device_map=dict.fromkeys(first, "lazy:0") | dict.fromkeys(last, "lazy:1"))
        row = gpu.spread(model, pairs, alone)
    assert row["devices"] == 2 and row["apart"] < 1e-4


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match=r"^1$"):
        gpu.main()
    said = capsys.readouterr()
    assert said.out == "" and "no GPU" in said.err
