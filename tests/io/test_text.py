"""Text that nobody can use is an error that names its file, wherever JSON and text come in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mechheads as mh
from mechheads.io.text import parse_json, read_json, read_text
from mechheads.safety import load_requests

DEEP = "[" * 100_000
HALF = "half of a surrogate pair"


def test_json_is_read_as_it_is(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, True], "b": "é 🙂 \ud83d\ude42".encode("utf-16", "surrogatepass").decode("utf-16")}
    for text in (json.dumps(content), json.dumps(content, ensure_ascii=False), "\ufeff" + json.dumps(content)):
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        assert read_json(tmp_path / "a.json") == content
    assert parse_json('"\\\\ud800"', "x") == r"\ud800"  # an escaped backslash, no surrogate
    assert read_text(tmp_path / "a.json").startswith("{")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (DEEP, "x cannot be read: its lists or objects are nested too deeply"),
        ("[1", "x is not JSON: Expecting ',' delimiter: line 1"),
        ("", "x is not JSON"),
        (r'["\ud800"]', f"x contains .* which is not valid Unicode: {HALF}"),
        (r'{"\uDC00 x": 1}', HALF),
    ],
)
def test_json_that_cannot_be_used(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text, "x")


@pytest.mark.parametrize("read", [mh.Relation.load, mh.gating.load_task, load_requests])
def test_a_name_that_is_too_long_is_no_file(read: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match=r"there is no|no such file|does not exist|is neither a file"):
        read("x" * 5000)


def test_text_given_in_python_is_checked_too(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("gpt2"))
    with pytest.raises(ValueError, match=f"prompt 1 contains .*{HALF}"):
        model.cache([" The", " \ud800"])
    with pytest.raises(ValueError, match=f"relation 'r' contains .*{HALF}"):
        mh.Relation("r", None, [("a", "\udfff")])
    with pytest.raises(ValueError, match=rf"targets\[0\] contains .*{HALF}"):
        mh.Task(["a"], ["\ud800"])
    with pytest.raises(ValueError, match=HALF):
        mh.Prompts([" The"], answer=["\ud800"]).tokens(model)
