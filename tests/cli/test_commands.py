"""The command line speaks its own words, before anything is computed: help, lists, seeds, and what errors say."""

from __future__ import annotations

import errno
import inspect
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

import mechheads as mh
import mechheads.model.load
import mechheads.studies.build
from mechheads.cli import main, options
from mechheads.cli.options import in_options
from mechheads.gating.shipped import task_names
from mechheads.interventions.basic import InterventionName
from mechheads.labels.classify import Rule
from mechheads.labels.readings import Source
from mechheads.labels.relations import relation_names
from mechheads.plots.category_map import Marks
from mechheads.safety.requests import _PUBLIC_SETS, PACKAGE_SETS, Template
from mechheads.studies.questions import PARTS

Tiny = Callable[[str], Path]


def said(*words: object, code: int) -> str:
    """What a command says, in one line, without how to use it."""
    done = CliRunner().invoke(main, [str(word) for word in words], env={"COLUMNS": "500"})
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return " ".join(done.output.split()).partition("Error: ")[2] or done.output


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its words."""

    def below(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        for name, one in getattr(command, "commands", {}).items():
            yield from below(one, f"{words} {name}".strip())
        if not hasattr(command, "commands"):
            yield words, command

    return below(typer.main.get_command(main), "")


COMMANDS = dict(commands())


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(mechheads.model.load, "load", load)


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_every_command_ends_with_an_example_that_it_takes(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for ledger in ("part1.ledger", "part2.ledger", "all.ledger"):
        Path(ledger).touch()
    Path("atlas").mkdir()
    short, long = (CliRunner().invoke(main, [*words.split(), flag]).output for flag in ("-h", "--help"))
    assert short == long
    example = " ".join(long.partition("Example: ")[2].split())
    typed = shlex.split(example)
    assert typed[: 1 + len(words.split())] == ["mechheads", *words.split()]
    COMMANDS[words].make_context(words, typed[1 + len(words.split()) :])


def test_options_with_the_same_name_are_the_same_everywhere() -> None:
    """A list is a list in every command, and each command that draws takes a seed."""
    of_name: dict[str, set[tuple[bool, str | None]]] = {}
    for words, command in COMMANDS.items():
        for param in command.params:
            if param.opts[0] in ("--model", "--requests"):
                continue  # one, or several in a figure
            of_name.setdefault(param.opts[0], set()).add((bool(param.multiple), param.metavar))
        draws = {"atlas", "figure categories", "figure safety", "figure roles", "figure recipe"}
        assert ("--seed" in [param.opts[0] for param in command.params]) == (words in draws)
    assert {name: kinds for name, kinds in of_name.items() if name.startswith("--") and len(kinds) > 1} == {}


def lists() -> list[tuple[str, str]]:
    found = [(words, param) for words, command in COMMANDS.items() for param in command.params if param.multiple]
    commas = ("column", "where")  # these may have commas
    return [(words, param.name) for words, param in found if param.name not in commas]


SOME = {
    "model": ["gpt2", "EleutherAI/pythia-70m@step3000"],
    "only": ["text", "labels"],
    "relations": ["country_to_capital", "english_to_french"],
    "requests": ["harmful", "AdvBench"],
    "ablations": ["zero", "mean"],
    "tasks": ["syntax", "math"],
    "data": ["one", "two"],
}


@pytest.mark.parametrize(("words", "name"), lists(), ids=str)
def test_lists_are_given_with_commas_or_repeated(words: str, name: str) -> None:
    first, second = SOME[name]
    more = {"figure recipe": ["chg"]}.get(words, [])
    for typed in ([f"--{name}", f"{first},{second}"], [f"--{name}", first, f"--{name}", second]):
        assert COMMANDS[words].make_context(words, [*more, *typed]).params[name] == [first, second]


def test_a_comma_in_the_name_of_a_file_is_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a,b.json").touch()
    assert COMMANDS["figure categories"].make_context("x", ["--relations", "a,b.json"]).params["relations"] == [
        "a,b.json"
    ]


# --- what is wrong is told before anything is imported or computed ------------------------------------------------

WRONG = {
    "figure categories --rule foo": "Invalid value for '--rule': 'foo' is not one of null, maps",
    "figure categories --source mlp": "'mlp' is not one of embedding, first_mlp, carried, all",
    "figure categories --min-pairs 0": "Invalid value for '--min-pairs': 0 is too small; give 1 or more",
    "figure categories --relations capitols": "'capitols' is neither a file nor the name of a relation",
    "figure categories --out notes.txt": "Invalid value for '--out': notes.txt is a file; give a folder",
    "figure categories --out notes.txt/labels": "notes.txt/labels cannot be created",
    "figure categories --model ./nothing": "Invalid value for '--model': there is no file or folder './nothing'",
    "figure categories --device gpu": "Invalid value for '--device': 'gpu' is no device",
    "atlas --only labels,safty": "'safty' is not one of patching, text, labels, causes, safety, roles. Did",
    "atlas --pairs nothing.csv": "Invalid value for '--pairs': there is no file 'nothing.csv'",
    "atlas --task sintax": "'sintax' is neither a file nor the name of a task. Did you mean \"syntax\"?",
    "atlas --column prompt": "--column and --where are of the file of --requests; give it too",
    "atlas --requests mine.csv --where label": "'label' names no value; write NAME=VALUE, or all for every row",
    "atlas --seed -1": "Invalid value for '--seed': -1 is too small; give 0 or more",
    "figure safety --requests advbnch": 'Did you mean "AdvBench"?',
    "figure roles --column question": "--column 'question' names no part of a task; write prompt=question",
    "figure roles --symlog 0": "Invalid value for '--symlog': 0.0 must be above 0",
    "figure recipe map": "'map' is not one of chg, maps, ships",
}


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("typed", WRONG)
def test_what_is_typed_wrong_is_told(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (files := ["mine.csv", "notes.txt"]):
        Path(name).touch()
    assert WRONG[typed] in said(*typed.split(), code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_nothing_heavy_is_imported_for_what_is_typed_wrong(tmp_path: Path) -> None:
    """Neither for help; ``torch`` alone takes a second."""
    code = f"""
import sys
from typer.testing import CliRunner
from mechheads.cli import main
for typed in {[*map(str.split, WRONG), ["-h"], ["atlas", "--help"]]}:
    assert CliRunner().invoke(main, typed).exit_code in (0, 2), typed
heavy = {{"torch", "transformers", "transformer_lens", "pandas", "xarray", "scipy", "plotly"}}
print(*sorted(heavy & set(sys.modules)))
"""
    for name in ("mine.csv", "notes.txt"):
        (tmp_path / name).touch()
    env = os.environ | {"PYTHONPATH": str(Path(mh.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False, env=env
    )
    assert (done.stdout, done.returncode) == ("\n", 0), done.stderr


@pytest.mark.usefixtures("no_model")
def test_columns_and_rows_of_a_file_of_tasks_are_taken_as_they_are_named(tmp_path: Path) -> None:
    file, out = tmp_path / "sums.csv", str(tmp_path / "out")
    file.write_text("q,a,kind\n1 + 1 =, 2,sum\n2 - 1 =, 1,difference\n")
    asked = ["figure", "roles", "--out", out, "--tasks", str(file), "--column", "prompt=q"]
    listed = "sums.csv has the columns 'q' ('1 + 1 ='), 'a' (' 2'), 'kind' ('sum'); "
    assert f"{listed}target is 'target', which is none of them" in said(*asked, code=1)
    wrong = [*asked, "--column", "target=a", "--where", "kind=product"]
    assert "no row of sums.csv has 'product' as its 'kind'; it has 'sum' (1 rows)" in said(*wrong, code=1)


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("command", ["atlas", "figure safety"])
def test_which_column_and_rows_of_a_file_are_meant_is_told_in_options(tmp_path: Path, command: str) -> None:
    file, out = tmp_path / "mine.csv", str(tmp_path / "out")
    file.write_text("prompt,label\nHow?,safe\n")
    asked = [*command.split(), "--out", out, "--requests", str(file), "--column", "prompt"]
    listed = "mine.csv has the columns 'prompt' ('How?'), 'label' ('safe'); "
    assert f"{listed}--where is not given" in said(*asked, code=1)
    assert f"{listed}--column is 'text', which is none of them" in said(*asked[:-1], "text", code=1)
    wrong = [*asked, "--where", "label=safe", "--where", "label=unsafe"]
    assert "no row of mine.csv has 'unsafe' as its 'label'; it has 'safe' (1 rows)" in said(*wrong, code=1)


def test_what_options_take_is_what_functions_take() -> None:
    assert tuple(part for part in PARTS if part != "own") == options.PARTS
    assert get_args(Rule) == options.RULES and set(options.SOURCES) == set(get_args(Source))
    assert get_args(InterventionName) == options.INTERVENTIONS
    assert set(options.REQUESTS) == {*PACKAGE_SETS, *_PUBLIC_SETS}
    closure = inspect.getclosurevars
    assert set(closure(options.task_names).nonlocals["known"]()) == set(task_names())
    assert set(closure(options.relation_names).nonlocals["known"]()) == set(relation_names())
    known = {
        ("figure categories", "marks"): get_args(Marks),
        ("figure safety", "template"): get_args(Template),
    }
    for (words, name), choices in known.items():
        for choice in choices:
            assert COMMANDS[words].make_context(words, [f"--{name}", choice]).params[name] == choice


# --- what goes wrong later is one sentence, in options ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("name_or_path 'x.gguf' is not a model: it is a text", "--model 'x.gguf' is not a model: it is a text"),
        ("model 'x' has no heads. Use mh.load without it", "--model 'x' has no heads"),
        ("the rule is simple, and the model is small", "the rule is simple, and the model is small"),
        ('source is odd; use source="embedding"', "--source is odd; use --source embedding"),
        ("min_pairs: too few; leave min_pairs out", "--min-pairs: too few; leave --min-pairs out"),
        ("it is gated. Read it; if you like, load with trust_remote_code=True", "it is gated. Read it"),
        ("no model: mh.load fails", "no model: mh.load fails"),
    ],
)
def test_messages_of_functions_are_told_in_options(message: str, told: str) -> None:
    names = {
        "model": "--model",
        "rule": "--rule",
        "source": "--source",
        "min_pairs": "--min-pairs",
    }
    assert in_options(message, names) == told


ERRORS: dict[str, tuple[Exception, str]] = {
    "a full disk": (
        OSError(errno.ENOSPC, "No space left on device", "out/relations.nc"),
        "out/relations.nc: no space left on device; give another folder with --out",
    ),
    "a full disk under the ledger": (
        sqlite3.OperationalError("database or disk is full"),
        "the ledger cannot be read or written: database or disk is full",
    ),
    "no right to write": (
        PermissionError(errno.EACCES, "Permission denied", "out/heads.csv"),
        "out/heads.csv: permission denied; give another folder with --out",
    ),
    "a file that went": (
        FileNotFoundError(errno.ENOENT, "No such file or directory", "mine.json"),
        "mine.json: no such file or directory",
    ),
    "no memory": (MemoryError("4 GB"), "memory ran out (4 GB)"),
    "a library that is missing": (ImportError("to load it, install peft"), "to load it, install peft"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_what_goes_wrong_with_the_machine_is_one_sentence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, told = ERRORS[what]

    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(mechheads.model.load, "load", load)
    assert said("atlas", "--out", tmp_path / "out", code=1) == told


def test_a_mistake_of_the_package_keeps_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(mechheads.model.load, "load", load)
    done = CliRunner().invoke(main, ["atlas", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, KeyError)


def test_a_figure_that_lacks_a_model_says_so_by_its_exit_code(tiny: Tiny, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    models = f"{tiny('llama')},{tmp_path / 'empty'}"
    words = ["figure", "categories", "--model", models, "--relations", "country_to_capital"]
    output = said(*words, "--out", tmp_path / "out", code=3)
    assert "Left out: empty; the notes say why." in output and "empty left out: " in output
    assert (tmp_path / "out" / "index.html").is_file()
