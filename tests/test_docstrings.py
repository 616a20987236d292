"""Public docstrings say what a user needs; ``test_weight`` counts those that are internal."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import mechheads

ROOT = Path(__file__).parent.parent
SPACES = [mechheads, *(getattr(mechheads, folder) for folder in mechheads._FOLDERS)]
PUBLIC: dict[str, Any] = {
    value.__qualname__: value
    for space in SPACES
    for value in (getattr(space, name) for name in space.__all__)
    if inspect.isfunction(value) or inspect.isclass(value)
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}


def shown_code() -> str:
    """The code of README, the docs and the notebooks: fenced blocks, and calls within a line."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(page.read_text("utf-8") for page in pages)
    fenced = "\n".join(text.split("```")[1::2])
    calls = "\n".join(re.findall(r"`([^`\n]+\([^`\n]*)`", text))
    return fenced + calls + "\n".join(each.read_text("utf-8") for each in (ROOT / "notebooks").glob("*.py"))


CODE = shown_code()


@pytest.mark.parametrize("name", PUBLIC)
def test_the_first_line_says_what_it_is(name: str) -> None:
    first, *others = (inspect.getdoc(PUBLIC[name]) or "").splitlines()
    assert first and first[-1] in ".?:" and len(first) <= 116
    assert not others or others[0] == ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_names_each_argument(name: str) -> None:
    """Metrics take what every metric takes."""
    function, text = FUNCTIONS[name], inspect.getdoc(FUNCTIONS[name]) or ""
    arguments = set(inspect.signature(function).parameters) - {"logits", "context"}
    assert {each for each in arguments if not re.search(rf"\b{each}\b", text)} == set()


@pytest.mark.parametrize(
    "name", [name for name, each in FUNCTIONS.items() if inspect.signature(each).return_annotation == "HeadScores"]
)
def test_a_function_of_scores_gives_their_dimensions(name: str) -> None:
    returns = (inspect.getdoc(FUNCTIONS[name]) or "").partition("Returns:\n")[2]
    assert re.search(r"\(?\[?layer, head|As ``mh\.", returns.partition("\n\n")[0])


DOING = (
    r"(Check|Compare|Copy|Draw|Fit|Generate|Give|Label|List|Load|Make|Measure|Merge|Open|Prepare|Read|Run|Use|Write)\b"
)


@pytest.mark.parametrize(
    "name", [name for name, each in FUNCTIONS.items() if inspect.signature(each).return_annotation != "None"]
)
def test_a_function_says_what_it_returns(name: str) -> None:
    """Its first line does; where that says what is done, ``Returns`` does."""
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert "\nReturns:\n" in text or not re.match(DOING, text)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_an_example(name: str) -> None:
    """In its docstring, where it runs as a test, or in the docs and notebooks."""
    assert ">>> " in (inspect.getdoc(FUNCTIONS[name]) or "") or re.search(rf"\b{name}\b", CODE)
