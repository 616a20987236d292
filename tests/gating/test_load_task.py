"""Tasks by name, from relations, and from the columns of a file, which are said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mechheads as mh
from mechheads.gating import load_task
from mechheads.gating.tasks import task_of

ROWS = [{"id": i, "q": f"{i} + 1 =", "a": f" {i + 1}", "kind": i % 2} for i in range(20)]


def write(folder: Path, content: Any) -> Path:
    (file := folder / "given.json").write_text(json.dumps(content))
    return file


def test_prompts_and_targets_are_the_columns_that_are_said(tmp_path) -> None:
    task = load_task(write(tmp_path, ROWS), prompt="q", target="a")
    assert task.prompts == tuple(row["q"] for row in ROWS)
    assert task.targets == tuple(row["a"] for row in ROWS)
    assert (task.name, task.cluster) == ("given", None)
    assert repr(task).endswith("\n  given.json, all 20 rows of 'q', 'a'; not used: 'id', 'kind'>")
    assert load_task(tmp_path / "given.json", prompt="q", target="a", cluster="kind").cluster == ("0", "1") * 10


def test_rows_are_chosen_by_values_of_columns(tmp_path) -> None:
    task = load_task(write(tmp_path, ROWS), prompt="q", target="a", where={"kind": 1})
    assert task.prompts == tuple(row["q"] for row in ROWS if row["kind"])
    assert task.source == "given.json, 10 of 20 rows of 'q', 'a'; not used: 'id'"
    assert task_of(tmp_path / "given.json", {"prompt": "q", "target": "a", "where": {"kind": ["1"]}}) == task


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({}, "prompt is not given"),
        ({"prompt": "q"}, "target is not given"),
        ({"prompt": "q", "target": "answer"}, "target is 'answer', which is none of them"),
        ({"prompt": "q", "target": "a", "cluster": "group"}, "cluster is 'group', which is none of them"),
    ],
)
def test_columns_that_are_not_said_are_not_guessed(tmp_path, columns: dict[str, str], what: str) -> None:
    listed = r"^given.json has the columns 'id' \(0\), 'q' \('0 \+ 1 ='\), 'a' \(' 1'\), 'kind' \(0\); "
    with pytest.raises(ValueError, match=rf"{listed}{what}; write load_task\('given.json', prompt=..., target=...\)"):
        load_task(write(tmp_path, ROWS), **columns)


def test_some_items_are_drawn_by_the_seed(tmp_path) -> None:
    def drawn(**how: int) -> mh.Task:
        return load_task(write(tmp_path, ROWS), prompt="q", target="a", **how)

    some = drawn(n=5)
    assert len(some) == 5 and len(set(some.prompts)) == 5
    assert some == drawn(n=5) != drawn(n=5, seed=1)
    with pytest.raises(ValueError, match="n is 21, but task 'given' has 20 items"):
        drawn(n=21)


def test_an_unknown_name_is_refused() -> None:
    for read in (load_task, task_of):
        with pytest.raises(ValueError, match=r"task 'sintax' is neither a file nor one of .*Did you mean \"syntax\""):
            read("sintax")
    with pytest.raises(ValueError, match=r"source is 3; give a text or a path or mh\.Relation"):
        load_task(3)
