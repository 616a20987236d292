"""The package gets no heavier: its lines, statements and files stay at or below what ``weight.json`` says.

After a change that makes it lighter, ``python tests/test_weight.py`` writes the smaller numbers. It raises none.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mechheads"
CEILING = Path(__file__).with_name("weight.json")


def weight(folder: Path) -> dict[str, int]:
    """How many lines, statements and files of Python a folder has; lines as the tree holds them, formatted by ruff."""
    texts = [path.read_text("utf-8") for path in folder.rglob("*.py")]
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "statements": sum(isinstance(node, ast.stmt) for text in texts for node in ast.walk(ast.parse(text))),
        "files": len(texts),
    }


def lowered(ceiling: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    """The ceiling after a change: no number is larger than before."""
    return {what: min(ceiling[what], now[what]) for what in ceiling}


def test_lines_statements_and_files_are_counted(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "one.py").write_text('"""One."""\n\n\ndef one():\n    """Gives 1."""\n    return 1\n')
    (tmp_path / "folder" / "two.py").write_text("x = 1; y = 2\nif x:\n    y = 3\n")
    (tmp_path / "folder" / "three.txt").write_text("none\n")
    assert weight(tmp_path) == {"lines": 9, "statements": 4 + 4, "files": 2}


def test_a_ceiling_is_only_lowered() -> None:
    assert lowered({"lines": 9, "files": 2}, {"lines": 7, "files": 3}) == {"lines": 7, "files": 2}


@pytest.mark.parametrize("what", ["lines", "statements", "files"])
def test_the_package_is_no_heavier_than_it_was(what: str) -> None:
    ceiling, now = json.loads(CEILING.read_text("utf-8")), weight(PACKAGE)
    assert now[what] <= ceiling[what], f"{now[what]} {what}: {now[what] - ceiling[what]} too many; take some away"


if __name__ == "__main__":
    before = json.loads(CEILING.read_text("utf-8"))
    after = lowered(before, weight(PACKAGE))
    CEILING.write_text(json.dumps(after, indent=2) + "\n", "utf-8")
    print(*(f"{what}: {before[what]} -> {after[what]}" for what in before), sep="\n")
