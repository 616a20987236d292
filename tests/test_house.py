"""How large the parts of the package are: what a reader has to keep in mind at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import mechheads

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mechheads"
FACES: list[ModuleType] = [
    mechheads,
    *(getattr(mechheads, name) for name in mechheads._FOLDERS),
]
PUBLIC = {
    (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
    for face in FACES
    for value in (getattr(face, name) for name in face.__all__)
}
"""Module and qualified name of every public function and class."""

CATCHES = {
    "mechheads/cli/results.py": "the exit code of an interrupted command",
    "mechheads/engine/run.py": "writes what is done to the ledger and raises again",
}
"""Files that catch Ctrl-C, and what for."""


STAMPS = {"mechheads/ledger/ledger.py": "when a sweep began, for people; nothing goes by it"}
"""Files that read the wall clock, and what for."""

DOORS = {
    "mechheads/prompts/encoding.py": "gives the tokens of every text, whole or a piece",
    "mechheads/generation/generate.py": "asks the chat template how an answer ends",
}
"""Files that use a tokenizer or a chat template, and what for."""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function under a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            full = f"{name}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield full, child
            yield from functions(child, f"{full}.")


def is_public(module: str, name: str) -> bool:
    return any(module == home and f"{name}.".startswith(f"{one}.") for home, one in PUBLIC)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def test_no_function_behind_the_public_face_takes_more_than_seven_parameters() -> None:
    many = {}
    for path in sources():
        if path.parent.name == "cli":  # typer makes an option of every parameter of a command
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name, function in functions(parsed(path)):
            if parameters(function) > 7 and not is_public(module, name):
                many[f"{module}.{name}"] = parameters(function)
    assert many == {}


def test_no_function_is_long() -> None:
    long = {}
    for path in sources():
        for name, function in functions(parsed(path)):
            if body_lines(function) > 80:
                long[f"{where(path)}: {name}"] = body_lines(function)
    assert long == {}


def test_no_file_is_long() -> None:
    lengths = {where(path): len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert {path: length for path, length in lengths.items() if length > 600} == {}


def test_ctrl_c_is_caught_in_few_places() -> None:
    catching = {
        where(path)
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and "KeyboardInterrupt" in ast.unparse(node.type)
    }
    assert catching == set(CATCHES)


def reads_wall_clock(tree: ast.Module) -> bool:
    """Whether code asks what time it is, which is no way to measure how long something takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if {alias.name for alias in node.names} - {"monotonic", "perf_counter", "process_time", "sleep"}:
                return True
        elif isinstance(node, ast.Import):
            if any(alias.name in ("time", "datetime") and alias.asname for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"time\.(time|time_ns|localtime|gmtime|ctime|asctime|strftime|clock_\w+)", name):
                return True
            if node.attr in ("now", "utcnow", "today"):
                return True
    return False


@pytest.mark.parametrize(
    ("code", "reads"),
    [
        ("import time\nstart = time.time()", True),
        ("from time import time", True),
        ("import time as clock", True),
        ("from datetime import datetime\nstart = datetime.now()", True),
        ("import time\nstart = time.monotonic() + time.perf_counter()\ntime.sleep(1)", False),
    ],
)
def test_whether_code_reads_the_wall_clock_is_found_out(code: str, reads: bool) -> None:
    assert reads_wall_clock(ast.parse(code)) is reads


def test_durations_are_measured_by_clocks_that_do_not_jump() -> None:
    assert {where(path) for path in sources() if reads_wall_clock(parsed(path))} == set(STAMPS)


def tokenises(node: ast.AST) -> bool:
    """Whether code has a text tokenised, or a chat put into a template."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    owner = getattr(getattr(node.func, "value", None), "attr", getattr(getattr(node.func, "value", None), "id", ""))
    asked = name in ("encode", "tokenize", "encode_plus", "batch_encode_plus") and "tokenizer" in owner
    return asked or name.strip("_") == "tokenizer" or name in ("apply_chat_template", "to_tokens")


@pytest.mark.parametrize(
    ("code", "does"),
    [
        ("tokenizer(text)", True),
        ("self.model.tokenizer(text, add_special_tokens=False)", True),
        ("model._tokenizer.encode(text)", True),
        ("tokenizer.apply_chat_template(chat)", True),
        ("tokenizer.decode(ids)", False),
        ("text.encode()", False),
    ],
)
def test_whether_code_tokenises_text_is_found_out(code: str, does: bool) -> None:
    assert any(map(tokenises, ast.walk(ast.parse(code)))) is does


def test_texts_are_tokenised_in_one_place() -> None:
    assert {where(path) for path in sources() if any(map(tokenises, ast.walk(parsed(path))))} == set(DOORS)


def test_ruff_formats_every_line() -> None:
    exempt = re.compile(r"#\s*fmt:\s*(skip|off)")
    files = [path for folder in ("mechheads", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    assert [where(path) for path in files if exempt.search(path.read_text("utf-8"))] == []


def test_the_top_level_is_small() -> None:
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "_version.py",
        "heads.py",
        "limits.py",
        "units.py",
    ]
