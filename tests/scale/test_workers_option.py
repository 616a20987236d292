"""``--workers``, for every command that computes by workers."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mechheads.cli import main
from mechheads.limits import current
from mechheads.scale import ray_cluster
from support.figure_requests import roles_request
from support.made_workers import MadeWorkers

COMMANDS = [["atlas"], ["figure", "safety"], ["figure", "roles"], ["figure", "ships"]]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> MadeWorkers:
    """What ``--workers 2`` starts."""
    workers = MadeWorkers(2)
    monkeypatch.setattr(ray_cluster, "_shared", {2: workers}.__getitem__)
    return workers


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models must not be loaded."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("the model was loaded")

    for name in ("model.load.load", "studies.figures.panels.load_model"):
        monkeypatch.setattr(f"mechheads.{name}", never)


def test_roles_are_fitted_by_workers(tiny, tmp_path: Path, two: MadeWorkers):
    asked = roles_request(tiny, tmp_path)
    words = ["figure", "roles", "--data", asked["tasks"], "--model", tiny("llama"), "--out", asked["out"]]
    words += ["--workers", "2", "--quick"]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    computed = {str(unit) for units in two.computed for unit in units}
    assert "the fit none of seed 0" in computed


def refused(words: list[str], asked: str, tmp_path: Path) -> str:
    """What a command says, in one line."""
    out = ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*words, *out, "--workers", asked], env={"COLUMNS": "500"})
    assert done.exit_code == 1
    return done.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("unloaded")
def test_what_is_neither_is_an_error_before_the_model_is_loaded(words: list[str], tmp_path: Path):
    assert "workers is 'x'; give a number of workers on this machine" in refused(words, "x", tmp_path)


def test_without_ray_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert 'workers need ray: pip install "mechheads[ray]"' in refused(["atlas"], "2", tmp_path)


@pytest.mark.parametrize("asked", [[], ["--workers", "1"]])
def test_one_process_needs_no_ray(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["atlas", "--model", str(tiny("gpt2")), "--only", "text", "--out", str(tmp_path / "out"), *asked]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output


FACES = {
    "atlas": ("mechheads.studies.build.build_atlas", ["atlas"]),
    "figure": ("mechheads.studies.figures.recipe_figure", ["figure", "chg"]),
}


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize(("asked", "given"), [("1", None), ("3", 3), ("10.0.0.5:6379", "10.0.0.5:6379")])
def test_commands_pass_the_workers_on(
    name: str, asked: str, given: int | str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def face(*_args: object, **_options: object) -> None:
        seen.append(current().limits.workers)
        raise ValueError("enough")

    home, words = FACES[name]
    monkeypatch.setattr(home, face)
    monkeypatch.setattr(
        "mechheads.model.load.load", lambda *_args, **_options: SimpleNamespace(device=torch.device("meta"))
    )
    questions = SimpleNamespace(study={"study": "atlas"})
    monkeypatch.setattr("mechheads.studies.questions.Questions.of", lambda *_, **__: questions)
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out"), "--workers", asked])
    assert done.exit_code == 1 and "Error: enough" in done.output
    assert seen == [given]
