"""Saving over a file: one of another kind is left alone, a link is followed, and a full disk leaves the old file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

import mechheads as mh
from mechheads.io.write import remove_unfinished


def saves(size: float) -> dict[str, Callable[[Path], object]]:
    """Ways to save numbers of this size, by the file's name; each writes more than 4 KB."""
    effect = mh.HeadScores.from_scores(size * np.eye(3), name="effect", kind="demo")
    return {
        "effect.nc": effect.save,
        "figure.html": lambda path: mh.plots.save(go.Figure(layout={"title": {"text": str(size)}}), path),
        "page.html": lambda path: mh.explore(effect, path=path),
    }


SAVES = saves(1.0)
EFFECT = mh.HeadScores.from_scores(np.eye(3), name="effect", kind="demo")


@pytest.mark.parametrize("name", SAVES)
def test_a_file_of_another_kind_is_not_replaced_and_one_of_the_same_kind_is(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text("a week of notes")
    with pytest.raises(ValueError, match=r"the file that is there is not .*, so it is not replaced; give another path"):
        SAVES[name](path)
    assert path.read_text() == "a week of notes"
    path.write_text("")
    for _ in range(2):
        SAVES[name](path)
        assert path.stat().st_size > 4000
    assert list(tmp_path.iterdir()) == [path]


def test_a_page_that_nobody_named_replaces_only_such_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        page = Path(mh.explore(EFFECT))
    page.write_text("<html>a week of notes")
    with pytest.raises(ValueError, match=rf"{page} is there and is no page of the explorer, so it is not replaced"):
        mh.explore(EFFECT)
    assert page.read_text() == "<html>a week of notes"


def test_a_link_is_followed(tmp_path: Path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "near.nc"
    link.symlink_to(tmp_path / "far" / "effect.nc")
    EFFECT.save(link)
    assert link.is_symlink() and mh.HeadScores.load(tmp_path / "far" / "effect.nc").scores.equals(EFFECT.scores)


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_saving_over import saves
for name, save in saves(1.0).items():
    save(Path(sys.argv[2], name))
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for name, save in saves(2.0).items():
    for path in (Path(sys.argv[2], name), Path(sys.argv[2], "new", name)):
        try:
            save(path)
        except OSError as error:
            assert "cannot save to" in str(error), error
        else:
            raise SystemExit(f"{path} was saved")
"""


def test_no_file_is_left_cut_where_files_may_not_grow(tmp_path: Path):
    (tmp_path / "new").mkdir()
    subprocess.run([sys.executable, "-c", FULL, Path(__file__).parent, tmp_path], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {*SAVES, "new"} and not list((tmp_path / "new").iterdir())
    assert mh.HeadScores.load(tmp_path / "effect.nc").scores.equals(EFFECT.scores)
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


KILLED = """
import os, signal, sys
from pathlib import Path
from mechheads.io.write import replacing
with replacing(Path(sys.argv[1])) as unfinished:
    unfinished.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_when_the_folder_is_cleaned(tmp_path: Path):
    path = tmp_path / "effect.nc"
    (tmp_path / ".notes.tmp").touch()
    subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    remove_unfinished(tmp_path)
    EFFECT.save(path)
    assert sorted(os.listdir(tmp_path)) == [".notes.tmp", "effect.nc"]
