"""The command line: help, lists, what is wrong before anything is computed, and what errors say."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import mechheads as mh
import mechheads.model.load
from mechheads.cli import main
from mechheads.studies.figures import panels

Tiny = Callable[[str], Path]
COMMANDS: dict[str, Any] = typer.main.get_command(main).commands  # type: ignore[attr-defined]


def said(*words: object, code: int) -> str:
    """What a command says, in one line, without how to use it."""
    done = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "500"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split()).partition("Error: ")[2] or done.output


def load_fails(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(mechheads.model.load, "load", load)
    monkeypatch.setattr(panels, "load_model", load)


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_every_command_ends_with_an_example_that_it_takes(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ledger in ("part1.ledger", "part2.ledger"):
        Path(ledger).touch()
    short, long = (CliRunner().invoke(main, [words, flag]).output for flag in ("-h", "--help"))
    assert short == long
    typed = shlex.split(" ".join(long.partition("Example: ")[2].split()))
    assert typed[:2] == ["mechheads", words]
    COMMANDS[words].make_context(words, typed[2:])


SOME = {
    "atlas": {"only": ["text", "labels"], "relations": ["country_to_capital", "english_to_french"]},
    "figure": {"model": ["gpt2", "EleutherAI/pythia-70m@step3000"], "data": ["syntax", "math"]},
}


@pytest.mark.parametrize(("words", "name"), [(words, name) for words, of in SOME.items() for name in of])
def test_lists_are_given_with_commas_or_repeated(words: str, name: str) -> None:
    first, second = SOME[words][name]
    more = ["roles"] if words == "figure" else []
    for typed in ([f"--{name}", f"{first},{second}"], [f"--{name}", first, f"--{name}", second]):
        assert COMMANDS[words].make_context(words, [*more, *typed]).params[name] == [first, second]


WRONG: dict[str, tuple[str, int]] = {
    "atlas --only labels,safty": ("only is 'safty'; choose one of 'patching', 'text', 'labels'", 1),
    "atlas --only ,": ("Invalid value for '--only': it names nothing", 2),
    "atlas --pairs nothing.csv": ("Invalid value for '--pairs': file 'nothing.csv' does not exist", 2),
    "atlas --seed -1": ("Invalid value for '--seed': Input should be greater than or equal to 0", 2),
    "atlas --out notes.txt": ("Invalid value for '--out': dir 'notes.txt' is a file", 2),
    "atlas --out notes.txt/atlas": ("Not a directory: 'notes.txt/atlas'", 1),
    "figure categories --data capitols": ("there is no relation 'capitols'", 1),
    "figure safety --data advbnch": ('Did you mean "AdvBench"?', 1),
    "figure roles --data maths": ("task 'maths' is neither a file nor one of", 1),
    "figure map": ("name is 'map'; choose one of 'categories', 'safety', 'roles', 'chg', 'maps', 'ships'", 1),
}


@pytest.mark.parametrize("typed", WRONG)
def test_what_is_typed_wrong_is_told_before_a_model_is_loaded(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fails(monkeypatch, AssertionError("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").touch()
    told, code = WRONG[typed]
    assert told in said(*typed.split(), code=code)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_nothing_heavy_is_imported_for_help(tmp_path: Path) -> None:
    """``torch`` alone takes a second."""
    code = f"""
import sys
from typer.testing import CliRunner
from mechheads.cli import main
for typed in {[["-h"], *([words, "--help"] for words in COMMANDS)]}:
    assert CliRunner().invoke(main, typed).exit_code == 0, typed
heavy = {{"torch", "transformers", "transformer_lens", "pandas", "xarray", "scipy", "plotly"}}
print(*sorted(heavy & set(sys.modules)))
"""
    env = os.environ | {"PYTHONPATH": str(Path(mh.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False, env=env
    )
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


ERRORS: list[tuple[Exception, str]] = [
    (OSError(errno.ENOSPC, "No space left on device", "out/relations.nc"), "No space left on device: 'out/relat"),
    (sqlite3.OperationalError("database or disk is full"), "database or disk is full"),
    (MemoryError(), "MemoryError"),
    (ImportError("to load it, install peft"), "to load it, install peft"),
]


@pytest.mark.parametrize(("error", "told"), ERRORS, ids=str)
def test_what_goes_wrong_with_the_machine_is_one_sentence(
    error: Exception, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_fails(monkeypatch, error)
    assert told in said("atlas", "--out", tmp_path / "out", code=1)


def test_a_figure_that_lacks_a_model_says_so_by_its_exit_code(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "capitals.json").write_text(
        '{"name": "capitals", "category": "Knowledge", "pairs": [["France", "Paris"], ["Italy", "Rome"]]}'
    )
    words = ["figure", "categories", "--model", f"{tiny('llama')},{tmp_path / 'empty'}"]
    output = said(*words, "--data", tmp_path / "capitals.json", "--out", tmp_path / "out", code=3)
    assert "Left out: empty; the notes say why." in output and "empty left out: " in output
    assert "Unclassified" in output and (tmp_path / "out" / "index.html").is_file()
