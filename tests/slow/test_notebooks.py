"""The notebooks run from top to bottom, their exercises can be solved, and they are stored with what they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jupytext
import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient

from docs import notebooks

SOURCES = sorted(notebooks.FOLDER.glob("*.py"))
LARGEST = 750_000  # bytes; all of them together stay below 6 MB
EMPTY = """
import functools, mechheads
if not hasattr(mechheads.load, "cache_clear"):
    mechheads.load = functools.cache(mechheads.load)
%reset -f
%cd -q {folder}
"""

of_each = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)


def stored(source: Path) -> nbformat.NotebookNode:
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def test_every_notebook_has_its_files() -> None:
    names = [path.stem for path in SOURCES]
    assert [path.stem for path in sorted(notebooks.FOLDER.glob("*.ipynb"))] == names
    assert [path.stem for path in sorted((notebooks.FOLDER / "checks").glob("*.py"))] == names


@of_each
def test_both_files_say_the_same(source: Path) -> None:
    script, notebook = jupytext.read(source), stored(source)
    cells = [
        [(cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in file.cells] for file in (script, notebook)
    ]
    assert cells[0] == cells[1], f"run: python docs/notebooks.py {source.stem}"
    assert notebook.metadata.kernelspec.name == "python3"


@of_each
def test_what_it_shows_is_stored(source: Path) -> None:
    code = [cell for cell in stored(source).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    figures = [output.data for output in outputs if notebooks.PLOTLY in output.get("data", {})]
    assert all(notebooks.PNG in data and "text/html" not in data for data in figures)
    assert source.with_suffix(".ipynb").stat().st_size < LARGEST


@of_each
def test_it_has_three_exercises_and_asserts_nothing(source: Path) -> None:
    notebook = jupytext.read(source)
    for tag in ("exercise", "check-answer", "solution"):
        assert len(notebooks.tagged(notebook, tag)) == 3, tag
    assert [cell.source for cell in notebook.cells if re.search(r"^\s*assert ", cell.source, re.MULTILINE)] == []


@pytest.fixture(scope="module")
def kernel() -> Iterator[AsyncKernelManager]:
    """One for all, so that libraries are imported and a model is loaded once; ``EMPTY`` empties its namespace."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@of_each
def test_runs_from_top_to_bottom(source: Path, tmp_path: Path, kernel: AsyncKernelManager) -> None:
    notebook = stored(source)
    own, checking = list(notebook.cells), notebooks.checking_cells(notebook, source)
    empty = nbformat.v4.new_code_cell(EMPTY.format(folder=str(tmp_path)))
    notebook.cells = [empty, *own, *checking]
    NotebookClient(notebook, timeout=600, km=kernel).execute()
    assert [notebooks.printed(cell) for cell in notebooks.tagged(notebook, "check-answer")] == ["No answer yet.\n"] * 3
    assert notebooks.unexpected(checking) == []
    assert notebooks.errors_told(own) == notebooks.errors_told(stored(source).cells)
    shown = [output.get("data", {}) for cell in own for output in cell.get("outputs", [])]
    assert not any(notebooks.WIDGET in data and "%|" in data["text/plain"] for data in shown)  # a bar at 0%
    for cell in own:
        figures = [output for output in cell.get("outputs", []) if notebooks.PLOTLY in output.get("data", {})]
        if cell.cell_type == "code":
            assert len(figures) == bool(re.search(r"\.plots?[.(]", cell.source)), cell.source
