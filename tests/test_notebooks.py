"""The notebooks run from top to bottom, and their two files say the same."""

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

FOLDER = Path(__file__).parent.parent / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))

EXERCISES = {
    "01_first_look": """
def changed(metric):
    return mh.sweep(
        model, fresh.side("clean"), intervention=Blindfold(), metric=metric, heads=candidates, progress=False
    )

logits, share = changed(mh.logit_diff), changed(mh.accuracy)
assert abs(logits["L23H4"]["score"] + 5.0) < 0.05
assert abs(logits.dataset["base_metric"].mean() - 9.9) < 0.05
assert share["L23H4"]["score"] == 3 / 8 - 1
assert abs(logits["L29H1"]["score"]) < 0.05
""",
    "02_activation_patching": """
assert abs(asked["L23H4"]["score"]) < 0.3
assert set(asked.heads(2)) == {mh.HeadId(22, 3), mh.HeadId(21, 7)}
assert abs(effect["L22H3"]["score"]) < 0.2 and abs(effect["L21H7"]["score"]) < 0.2
""",
    "03_path_patching": """
assert told.heads(2, by="absolute") == (mh.HeadId(10, 6), mh.HeadId(10, 8))
assert abs(told["L10H6"]["score"] + 0.67) < 0.02 and told["L10H8"]["score"] > 0.4
assert abs(told.scores.sum()) < 0.5
""",
    "04_your_own_experiment": """
assert check_intervention(InItsVoice()).passed
options = {"metric": mh.logit_diff, "base": "corrupted", "normalize": True, "progress": False}
voice = mh.sweep(model, pairs, intervention=InItsVoice(), heads=["L23H4"], **options)
assert abs(voice["L23H4"]["score"] - 0.01) < 0.005
assert abs(words["L23H4"]["score"] - 0.85) < 0.01
""",
    "05_labels": """
raises = rivals.values.sel(layer=23, head=5).values == 1
assert (raises[0].sum(), (raises[0] & raises[1]).sum(), raises.shape[1]) == (23, 18, 39)
assert [str(head) for head in best[:4]] == ["L23H5", "L23H2", "L24H5", "L23H0"]
scores = pd.DataFrame({head: rivals[head].set_index("relation")["score"] for head in best}).T
assert (scores["noun_to_itself"] > scores["noun_to_plural"]).tolist()[:4] == [False, True, True, True]
assert mh.label_heads(rivals).of("L23H5") == ("Linguistic", "Algorithmic")
assert rivals.dataset["null_phi"].sel(layer=23, head=5, relation="noun_to_plural") * 39 < 1
assert {" river", " rivers", " water", " flowing"} <= set(top_tokens(rows_of_M(["river"], 23, 5)[0]))
""",
    "06_safety_heads": """
rows = blind.table.set_index("condition")
assert list(rows.index) == ["intact", "ablated", "random 1", "random 2", "random 3"]
assert rows.loc["intact", "attack_success"] == 0.3 and rows.loc["ablated", "attack_success"] == 1
assert sorted(rows["attack_success"].filter(like="random")) == [0.1, 0.2, 0.8]
""",
    "07_roles": """
assert list(table) == ["aba_abb", "capitals"] and list(table.index) == ["none", "facilitation", "irrelevance"]
assert table.loc["facilitation", "aba_abb"] < table.loc["irrelevance", "aba_abb"]
""",
}
"""For each notebook the code that checks its exercise's solution, and what the text says of it."""

EMPTY = "%reset -f\n%cd -q {folder}"


def test_every_notebook_is_looked_at() -> None:
    assert [path.stem for path in SOURCES] == [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
    assert {path.stem for path in SOURCES} == set(EXERCISES)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_both_files_say_the_same(source: Path) -> None:
    script, notebook = jupytext.read(source), nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    cells = [[(cell.cell_type, cell.source) for cell in file.cells] for file in (script, notebook)]
    assert cells[0] == cells[1], f"run: jupytext --sync notebooks/{source.name}"
    assert notebook.metadata.kernelspec.name == "python3"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


@pytest.fixture(scope="module")
def kernel() -> Iterator[AsyncKernelManager]:
    """One for all, so that libraries are imported once; ``EMPTY`` gives each notebook a namespace of its own."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(source: Path, tmp_path: Path, kernel: AsyncKernelManager) -> None:
    notebook = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    solution = re.search(r"^```python\n(.*?)^```", notebook.cells[-1].source, re.DOTALL | re.MULTILINE)
    assert solution is not None, "the last cell holds no solution of the exercise"
    notebook.cells.append(nbformat.v4.new_code_cell(solution[1] + EXERCISES[source.stem]))
    notebook.cells.insert(0, nbformat.v4.new_code_cell(EMPTY.format(folder=str(tmp_path))))
    NotebookClient(notebook, timeout=300, km=kernel).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        figures = [out for out in cell.outputs if "application/vnd.plotly.v1+json" in out.get("data", {})]
        assert len(figures) == bool(re.search(r"\.plots?[.(]", cell.source)), cell.source
