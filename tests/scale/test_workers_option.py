"""``--workers``: processes or actors of Ray, for every command that computes by workers."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.cli.runs import workers_for
from mechheads.scale import write_analysis
from mechheads.studies.figures.request import FigureRequest, write_request
from mechheads.workers.local import Local
from mechheads.workers.messages import Request
from support.figure_requests import roles_request
from support.made_ray import MadeRay
from support.texts import CLEAN

COMMANDS = [
    ["atlas"],
    ["profile"],
    ["roles"],
    ["safety"],
    ["figure", "safety"],
    ["figure", "roles"],
    ["figure", "recipe", "ships"],
    ["figure", "repeat", "figure.json"],
    ["run", "spec.json", "--store", "sweep.ledger"],
]


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models must not be loaded."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("the model was loaded")

    for home in ("model.load", "studies.figures.safety", "studies.figures.roles"):
        monkeypatch.setattr(f"mechheads.{home}.load", never)


def test_actors_of_ray_give_the_numbers_of_one_process(loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = MadeRay({"CPU": 4})
    monkeypatch.setitem(sys.modules, "ray", made)
    small = loaded("llama")
    spec = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, kind="zero")
    words = ["run", spec, "--store", tmp_path / "l", "--out", tmp_path / "result.nc", "--workers", "ray:2"]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert [one["address"] for one in made.started] == ["local"]
    assert (len(made.options), made.killed, made.address) == (2, [0, 1], "")
    alone = mh.ablate(small, CLEAN, kind="zero", progress=False)
    np.testing.assert_allclose(mh.HeadScores.load(tmp_path / "result.nc").values, alone.values, rtol=1e-5, atol=1e-6)


def test_roles_are_fitted_and_their_curves_measured_by_actors(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    computed: list[str] = []

    def note(request: bytes) -> bool:
        asked = pickle.loads(request)
        computed.extend(str(unit) for unit in (asked.batch.units if isinstance(asked, Request) else ()))
        return False

    monkeypatch.setitem(sys.modules, "ray", MadeRay({"CPU": 4}, note))
    asked = roles_request(tiny, tmp_path)
    words = ["roles", "--task", asked["tasks"], "--model", tiny("llama"), "--out", asked["out"], "--workers", "ray:2"]
    done = CliRunner().invoke(main, [str(word) for word in [*words, "--seeds", 1, "--updates", 1, "--most", 1]])
    assert done.exit_code == 0, done.output
    assert {"the fit none of seed 0", "the curve of facilitation", "the curve of random 5"} <= set(computed)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("unloaded")
def test_what_is_neither_is_an_error_before_the_model_is_loaded(words: list[str], tmp_path: Path):
    out = [] if words[0] == "run" else ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*words, *out, "--workers", "x"])
    assert done.exit_code == 1
    assert "--workers is 'x'; give a number of processes, such as 2, or ray:2 for two actors of Ray" in done.output


@pytest.mark.parametrize("asked", ["x", "0", "-1", "1.5", "ray", "ray:", "ray:0", "ray:2:3", ""])
def test_neither_a_number_nor_actors_of_ray(asked: str):
    with pytest.raises(ValueError, match=f"--workers is '{asked}'"):
        workers_for(asked)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--workers is 'ray:2': .*pip install \"mechheads\[ray\]\""):
        workers_for("ray:2")


def test_one_is_this_process_and_more_are_processes():
    with workers_for("1") as alone:
        assert alone is None
    with workers_for("12") as several:
        assert isinstance(several, Local)
        assert several.replicas == 12


FACES = {
    "safety": ("mechheads.studies.safety.safety_study", ["safety"]),
    "figure safety": ("mechheads.studies.safety_figure", ["figure", "safety"]),
    "figure roles": ("mechheads.studies.roles_figure", ["figure", "roles"]),
    "figure recipe": ("mechheads.studies.recipe_figure", ["figure", "recipe", "chg"]),
    "figure repeat": ("mechheads.studies.repeat_figure", ["figure", "repeat", "figure.json"]),
}


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("asked", ["1", "3"])
def test_commands_pass_the_workers_on(name: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def face(*_args: object, workers: mh.scale.Local | None, **_options: object) -> None:
        seen.append(workers and workers.replicas)
        raise ValueError("enough")

    home, words = FACES[name]
    monkeypatch.setattr(home, face)
    monkeypatch.setattr("mechheads.model.load.load", lambda *_args, **_options: None)
    monkeypatch.setattr("mechheads.studies.safety.safety_settings", lambda *_args, **_options: {"study": "safety"})
    done = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out"), "--workers", asked])
    assert done.exit_code == 1 and "Error: enough" in done.output
    assert seen == [None if asked == "1" else 3]


def test_a_figure_of_weights_says_that_it_takes_no_workers(tmp_path: Path):
    file = tmp_path / "figure.json"
    write_request(file, FigureRequest.of("categories", ["gpt2"], {}), [])
    for words in (["recipe", "maps"], ["repeat", str(file)]):
        done = CliRunner().invoke(main, ["figure", *words, "--out", str(tmp_path / "out"), "--workers", "2"])
        assert done.exit_code == 1
        assert done.output == "Error: workers is Local(2), but this figure only reads weights; leave workers out\n"
