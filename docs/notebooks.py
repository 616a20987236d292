"""Run the notebooks and store their outputs: ``python docs/notebooks.py 02 08`` (without numbers: all).

Every exercise is answered twice, once right and once wrong, and the statements of the text about the results are
checked. A notebook that fails is not stored. In addition to what the tests need, the script needs kaleido, Pillow,
ipywidgets, and a Chromium for kaleido. The documentation is built from the stored notebooks and needs none of these.
Each figure is stored twice: as plotly's data, which Jupyter and the documentation draw, and as a PNG, which GitHub and
nbconvert show.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[1] / "notebooks"
PLOTLY, PNG, WIDGET = "application/vnd.plotly.v1+json", "image/png", "application/vnd.jupyter.widget-view+json"
WIDTH, HEIGHT = 700, 450
KERNEL_FILE = re.compile(r"^/\S*ipykernel\S*: ", re.MULTILINE)
BAR = re.compile(r"\r[^\r\n]*")
SOLUTION = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def tagged(notebook: NotebookNode, tag: str) -> list[NotebookNode]:
    """The cells with a tag."""
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def checks_of(source: Path) -> tuple[str, list[str]]:
    """The code that checks a notebook's results, and a wrong answer to each of its exercises."""
    _docstring, holds, *wrong = [cell.source for cell in jupytext.read(source.parent / "checks" / source.name).cells]
    return holds, wrong


def checking_cells(notebook: NotebookNode, source: Path) -> list[NotebookNode]:
    """Cells to run after the notebook's own: each exercise with a wrong and a right answer, and checks of the results.

    A cell's ``expected`` is the beginning of the line that the check of an exercise must print.
    """
    holds, wrong = checks_of(source)
    solutions = [SOLUTION.search(cell.source) for cell in tagged(notebook, "solution")]
    cells = []
    checks = tagged(notebook, "check-answer")
    for check, mistake, solution in zip(checks, wrong, solutions, strict=True):
        if solution is None:
            raise ValueError(f"{source.stem}: a solution holds no code")
        for code, expected in ((mistake, "Not yet: "), (solution[1], "Right: ")):
            cells.append(nbformat.v4.new_code_cell(f"{code}\n{check.source}", metadata={"expected": expected}))
    return [*cells, nbformat.v4.new_code_cell(holds)]


def printed(cell: NotebookNode) -> str:
    """All text that a cell printed."""
    return "".join(output.text for output in cell.outputs if output.get("name") == "stdout")


def errors_told(cells: list[NotebookNode]) -> list[str]:
    """What is printed by the cells that catch an error, without its numbers, which differ between processors."""
    catching = [
        cell for cell in cells if cell.cell_type == "code" and re.search(r"^except ", cell.source, re.MULTILINE)
    ]
    return [re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", printed(cell)) for cell in catching]


def unexpected(cells: list[NotebookNode]) -> list[str]:
    """The output of every check of an exercise that did not print the expected line."""
    return [
        f"{cell.source}\n-> {printed(cell)}"
        for cell in cells
        if "expected" in cell.metadata and f"\n{cell.metadata.expected}" not in f"\n{printed(cell)}"
    ]


def png(figure: dict[str, Any]) -> str:
    """The figure as a small PNG, in base64."""
    import plotly.io
    from PIL import Image

    layout = figure.get("layout", {})
    size = {"width": layout.get("width", WIDTH), "height": layout.get("height", HEIGHT)}
    drawn = plotly.io.to_image({"data": figure["data"], "layout": layout}, format="png", scale=1, **size)
    small = io.BytesIO()
    image = Image.open(io.BytesIO(drawn)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    image.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def store(source: Path) -> None:
    """Run a notebook from its script, check it, and write the ``.ipynb`` next to it."""
    notebook = jupytext.read(source)
    own = len(notebook.cells)
    notebook.cells += checking_cells(notebook, source)
    NotebookClient(
        notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    if failed := unexpected(notebook.cells[own:]):
        raise SystemExit(f"{source.stem}: an exercise's check said\n" + "\n".join(failed))
    del notebook.cells[own:]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata.pop("execution", None)
        if "outputs" in cell:  # without progress bars
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            cell.outputs = [each for each in cell.outputs if BAR.sub("", each.get("text", "text"))]
        for output in cell.get("outputs", []):
            if PLOTLY in (data := output.get("data", {})):
                data[PNG] = png(data[PLOTLY])
                data.pop("text/html", None)
            if output.get("name") == "stderr":
                output.text = BAR.sub("", output.text)
                output.text = KERNEL_FILE.sub("", output.text)
                print(f"{source.stem} wrote to stderr: {output.text}", file=sys.stderr)
    for name in ("language_info", "widgets"):
        notebook.metadata.pop(name, None)
    nbformat.validate(notebook)
    nbformat.write(notebook, source.with_suffix(".ipynb"))
    print(f"{source.stem}: {source.with_suffix('.ipynb').stat().st_size / 1e3:.0f} kB")


def main(numbers: list[str]) -> None:
    """Store the notebooks whose names start with one of the numbers, or all of them."""
    import kaleido

    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    kaleido.start_sync_server()
    for source in sorted(FOLDER.glob("*.py")):
        if not numbers or source.name.startswith(tuple(numbers)):
            store(source)
    kaleido.stop_sync_server()


if __name__ == "__main__":
    main(sys.argv[1:])
