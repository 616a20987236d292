"""``--workers``: processes or actors of Ray, for every command that computes by workers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.cli.runs import workers_for
from mechheads.scale import write_analysis
from mechheads.workers.local import Local
from support.made_ray import MadeRay
from support.texts import CLEAN

pytestmark = pytest.mark.transformerlens

COMMANDS = [
    ["atlas"],
    ["profile"],
    ["roles"],
    ["run", "spec.json", "--store", "sweep.ledger"],
]


def refusal(words: list[str], asked: str, folder: Path) -> str:
    """The error of a command that got no further than its arguments."""
    out = [] if words[0] == "run" else ["--out", str(folder / "out")]
    done = CliRunner().invoke(main, [*words, *out, "--workers", asked])
    assert done.exit_code == 1, done.output
    return done.output


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models must not be loaded."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mechheads.model.load.load", never)


def test_actors_of_ray_give_the_numbers_of_one_process(tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = MadeRay({"CPU": 4})
    monkeypatch.setitem(sys.modules, "ray", made)
    small = mh.load(tiny("llama"))
    spec = write_analysis(tmp_path / "spec.json", mh.ablate, small, prompts=CLEAN, kind="zero")
    words = ["run", spec, "--store", tmp_path / "l", "--out", tmp_path / "result.nc", "--workers", "ray:2"]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    assert [one["address"] for one in made.started] == ["local"]
    assert (len(made.options), made.killed, made.address) == (2, [0, 1], "")
    alone = mh.ablate(small, CLEAN, kind="zero", progress=False)
    np.testing.assert_allclose(mh.HeadScores.load(tmp_path / "result.nc").values, alone.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize("asked", ["x", "0", "-1", "1.5", "ray", "ray:", "ray:0", "ray:2:3", ""])
@pytest.mark.usefixtures("unloaded")
def test_what_is_neither_is_an_error_before_the_model_is_loaded(words: list[str], asked: str, tmp_path: Path):
    message = f"--workers is {asked!r}; give a number of processes, such as 2, or ray:2 for two actors of Ray"
    assert message in refusal(words, asked, tmp_path)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.usefixtures("unloaded")
def test_without_ray_the_error_says_how_to_install_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "Error: --workers is 'ray:2': mh.scale.Ray needs ray: pip install \"mechheads[ray]\"" in refusal(
        words, "ray:2", tmp_path
    )


def test_one_is_this_process_and_more_are_processes():
    with workers_for("1") as alone:
        assert alone is None
    with workers_for("12") as several:
        assert isinstance(several, Local)
        assert several.replicas == 12
