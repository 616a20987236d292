"""Files of the user's in a folder of results: nothing that a study did not write there is replaced or removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from typer.testing import CliRunner

import mechheads as mh
import mechheads.model.load
from mechheads.cli import LEDGER, PAGE, main
from mechheads.io.write import LOCK
from mechheads.studies.atlas import ATLAS_FILES
from mechheads.studies.study import claim_folder, save_parts

NAMES = [*ATLAS_FILES, PAGE, LEDGER]
"""What the command writes."""
MINE = "a week of notes"


def one_head(value: float) -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.array([[value]]), name="demo", unit="", kind="demo")


def refused(out: Path) -> str:
    done = CliRunner().invoke(main, ["atlas", "--out", str(out)])
    assert done.exit_code == 1, done.output
    return " ".join(done.output.split())


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(mechheads.model.load, "load", load)


@pytest.mark.usefixtures("no_model")
def test_a_command_names_a_file_of_yours_before_it_loads_a_model(tmp_path: Path):
    for i, name in enumerate(NAMES):
        out = tmp_path / str(i)
        out.mkdir()
        (out / name).write_text(MINE)
        assert f"{out / name} was not written by this study, so it is not replaced. Give" in refused(out)
        assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, MINE)]


@pytest.mark.usefixtures("no_model")
def test_links_and_folders_are_refused(tmp_path: Path):
    for kind, make in {"link": lambda path: path.symlink_to(tmp_path / "elsewhere.csv"), "folder": Path.mkdir}.items():
        out = tmp_path / kind
        out.mkdir()
        make(out / "heads.csv")
        assert "heads.csv was not written by this study, so it is not replaced" in refused(out)
    (tmp_path / "study").mkdir()
    for text in (MINE, "[1]", '{"study": {}}', '{"study": "mine", "files": []}'):
        (tmp_path / "study" / "study.json").write_text(text)
        assert "study.json" in refused(tmp_path / "study")
        assert (tmp_path / "study" / "study.json").read_text() == text


@pytest.mark.usefixtures("no_model")
def test_a_folder_in_which_another_command_works_is_refused(tmp_path: Path):
    with FileLock(tmp_path / LOCK):  # as another process holds it
        assert "is in use by another process or thread" in refused(tmp_path)


def test_other_files_in_the_folder_stay_and_those_of_the_study_are_replaced(
    tiny: Callable[[str], Path], tmp_path: Path
):
    (tmp_path / "capitals.json").write_text(
        '{"name": "capitals", "category": "Knowledge", "pairs": [["France", "Paris"], ["Italy", "Rome"]]}'
    )
    (tmp_path / "mine.csv").write_text(MINE)
    asked = ["atlas", "--only", "labels", "--model", str(tiny("llama")), "--relations", str(tmp_path / "capitals.json")]
    asked += ["--out", str(tmp_path)]
    for _ in range(2):
        done = CliRunner().invoke(main, asked)
        assert done.exit_code == 0, done.output
    written = {"relations.nc", "labels.nc", "heads.csv", "atlas.json", "index.html", "study.json"}
    assert {path.name for path in tmp_path.iterdir()} == written | {"capitals.json", "mine.csv"}
    assert (tmp_path / "mine.csv").read_text() == MINE


def test_results_that_go_are_removed(tmp_path: Path):
    save_parts(tmp_path, {"one": one_head(1.0), "two": one_head(2.0)}, {}, {"model": "a"})
    (tmp_path / "mine.csv").write_text(MINE)
    save_parts(tmp_path, {"one": one_head(1.0)}, {}, {"model": "a"})
    assert {path.name for path in tmp_path.iterdir()} == {"one.nc", "mine.csv", "study.json"}


def test_files_that_a_killed_process_was_writing_are_its(tmp_path: Path):
    """A folder knows its files before they are written, and a file of yours by another name is not among them."""
    claim_folder(tmp_path, {"model": "a"}, ["a.ledger", "one.csv"])
    (tmp_path / "one.csv").write_text("half")
    claim_folder(tmp_path, {"model": "a"}, ["one.csv"])
    (tmp_path / "two.csv").write_text(MINE)
    with pytest.raises(ValueError, match=r"two\.csv was not written"):
        claim_folder(tmp_path, {"model": "a"}, ["one.csv", "two.csv"])
