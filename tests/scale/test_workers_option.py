"""``--workers``, for every command that computes by workers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mechheads.cli import main
from mechheads.limits import current

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
