"""The package gets no heavier: its lines, statements, files and internal docstrings stay at or below ``weight.json``.

After a change that makes it lighter, ``python tests/test_weight.py`` writes the smaller numbers. It raises none.
"""

from __future__ import annotations

import ast
import inspect
import json
import pkgutil
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from test_reference import documented

PACKAGE = Path(__file__).parent.parent / "mechheads"
CEILING = Path(__file__).with_name("weight.json")


def public_names() -> set[str]:
    """Where the functions, classes and their bases of the reference are defined: ``folder.file.name``."""
    names = [name.rpartition(".") for name in documented() if "." in name]
    objects = [getattr(pkgutil.resolve_name(of), name) for of, _, name in names]  # a module may have the same name
    classes = [base for each in objects if inspect.isclass(each) for base in each.__mro__]
    found = [*filter(inspect.isfunction, objects), *classes]
    return {f"{each.__module__}.{each.__qualname__}" for each in found if each.__module__.startswith("mechheads.")}


def internal_docstrings(tree: ast.AST, where: str, public: Collection[str]) -> Iterator[str]:
    """The docstrings of what is not public; methods of a public class are public if their names are."""
    for node in ast.iter_child_nodes(tree):
        name, shown = where, False
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{where}.{node.name}"
            shown = name in public or (where in public and isinstance(tree, ast.ClassDef) and node.name[0] != "_")
            if not shown and (text := ast.get_docstring(node)):
                yield text
        yield from internal_docstrings(node, name, public)


def weight(folder: Path, public: Collection[str] = ()) -> dict[str, int]:
    """Lines as ruff formats them, statements and files of Python; lines of internal docstrings beyond their second."""
    texts = {path.relative_to(folder.parent): path.read_text("utf-8") for path in folder.rglob("*.py")}
    names = {path: ".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in texts}
    trees = {names[path]: ast.parse(text) for path, text in texts.items()}
    said = [text for name, tree in trees.items() for text in internal_docstrings(tree, name, public)]
    return {
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "statements": sum(isinstance(node, ast.stmt) for tree in trees.values() for node in ast.walk(tree)),
        "files": len(texts),
        "docstrings": sum(max(len(text.splitlines()) - 2, 0) for text in said),
    }


def lowered(ceiling: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """The ceiling after a change: no number is larger than before."""
    return {what: min(ceiling[what], now[what]) for what in ceiling}


@pytest.mark.parametrize("what", ["lines", "statements", "files", "docstrings"])
def test_the_package_is_no_heavier_than_it_was(what: str) -> None:
    ceiling, now = json.loads(CEILING.read_text("utf-8")), weight(PACKAGE, public_names())
    assert now[what] <= ceiling[what], f"{now[what]} {what}: {now[what] - ceiling[what]} too many; take some away"


if __name__ == "__main__":
    before = json.loads(CEILING.read_text("utf-8"))
    after = lowered(before, weight(PACKAGE, public_names()))
    CEILING.write_text(json.dumps(after, indent=2) + "\n", "utf-8")
    print(*(f"{what}: {before[what]} -> {after[what]}" for what in before), sep="\n")
