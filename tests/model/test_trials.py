"""Findings of the trial at loading: kept for the next process, and used for nothing else than what was tried."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import mechheads as mh
from mechheads.model import core, load as loading, trials
from support.same import assert_same

PROMPTS = ["the big cat sat", "a small dog ran"]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the notes, empty; models of any size are worth one."""
    monkeypatch.setenv("MECHHEADS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trials, "_WORTH", 0)
    return tmp_path / "cache" / "trials"


@pytest.fixture
def folder(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("llama"), tmp_path / "llama"))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is tried, as it is tried."""
    done: list[str] = []
    for module, name in ((core, "check_readable"), (loading, "_trial"), (loading, "_try")):
        usual = getattr(module, name)

        def noted(*given: Any, name: str = name, usual: Callable[..., Any] = usual) -> Any:
            done.append(name)
            return usual(*given)

        monkeypatch.setattr(module, name, noted)
    return done


def test_a_model_is_tried_once_and_gives_the_same_afterwards(notes: Path, folder: Path, tried: list[str]) -> None:
    first = mh.load(folder)
    assert tried == ["_trial", "check_readable", "_try"]
    again = mh.load(folder)
    assert len(tried) == 3 and len(list(notes.iterdir())) == 1
    assert again.backend.found == first.backend.found
    assert all(attention.long > 0 for attention in getattr(again.backend, "_fused", ()))
    one, other = (mh.ablate(model, PROMPTS, metric="kl_divergence") for model in (first, again))
    assert_same(one, other)


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: 1.5 * value for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})


def other_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))


@pytest.mark.parametrize("change", [other_weights, other_config])
def test_changed_files_are_tried_again_and_the_old_findings_go(
    notes: Path, folder: Path, tried: list[str], change: Callable[[Path], None]
) -> None:
    mh.load(folder)
    (note,) = notes.iterdir()
    before = note.read_text()
    change(folder)
    mh.load(folder)
    assert len(tried) == 6 and list(notes.iterdir()) == [note] and note.read_text() != before


@pytest.mark.parametrize(
    "how", [{"dtype": torch.float16}, {"attn_implementation": "eager"}], ids=["dtype", "attention"]
)
def test_each_way_of_loading_is_tried(notes: Path, folder: Path, tried: list[str], how: dict[str, Any]) -> None:
    mh.load(folder)
    mh.load(folder, **how)
    mh.load(folder, **how)
    assert len(tried) == 6 and len(list(notes.iterdir())) == 2


@pytest.mark.parametrize("what", ["version", "code", "library", "processor"])
def test_what_computes_is_part_of_what_it_depends_on(
    notes: Path, folder: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    mh.load(folder)
    usual = trials.importlib.metadata.version
    newer = {
        "version": (trials, "__version__", "99"),
        "code": (trials, "_own_files", lambda: ["a file that was edited"]),
        "library": (trials.importlib.metadata, "version", lambda name: "99" if name == "torch" else usual(name)),
        "processor": (torch.backends.cpu, "get_cpu_capability", lambda: "AVX1024"),
    }
    monkeypatch.setattr(*newer[what])
    mh.load(folder)
    assert len(tried) == 6 and len(list(notes.iterdir())) == 1


def with_other_numbers(kept: dict[str, Any]) -> str:
    kept["found"]["numbers"] = [1.0 + number for number in kept["found"]["numbers"]]
    kept["sha256"] = trials._sum_of([kept["depends_on"], kept["found"]])
    return json.dumps(kept)


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "",
        lambda kept: json.dumps(kept)[:-9],
        lambda kept: json.dumps(kept | {"found": {**kept["found"], "layout": "whole"}}),
        with_other_numbers,
    ],
    ids=["empty", "cut short", "written into", "other numbers"],
)
def test_findings_that_are_damaged_or_do_not_hold_are_found_anew(
    notes: Path, folder: Path, tried: list[str], damage: Callable[[dict[str, Any]], str]
) -> None:
    found = mh.load(folder).backend.found
    (note,) = notes.iterdir()
    whole = json.loads(note.read_text())
    note.write_text(damage(json.loads(note.read_text())))
    model = mh.load(folder)
    assert "_try" in tried[3:] and model.backend.found == found
    assert np.allclose(json.loads(note.read_text())["found"]["numbers"], whole["found"]["numbers"], atol=1e-4)


def test_a_cache_that_cannot_be_written_costs_a_trial_and_no_more(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: list[str]
) -> None:
    monkeypatch.setattr(trials, "_WORTH", 0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MECHHEADS_CACHE", str(tmp_path / "file" / "cache"))
    for _ in range(2):
        mh.load(folder)
    assert len(tried) == 6


def test_small_models_and_models_that_somebody_holds_leave_nothing(
    notes: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mh.load(folder)
    shutil.rmtree(notes)
    mh.wrap(model.model)
    monkeypatch.setattr(trials, "_WORTH", 10**7)
    mh.load(folder)
    assert not notes.exists()
