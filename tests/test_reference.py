"""The API reference documents every public name, and names nothing that does not exist."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parent.parent / "docs" / "api"
FOLDERS = ("behaviour", "gating", "io", "labels", "patching", "plots", "safety", "scale", "studies", "testing")


def documented() -> list[str]:
    """The full name of every ``auto`` directive of the reference."""
    found: list[str] = []
    for page in sorted(REFERENCE.glob("*.md")):
        module = ""
        for kind, name in re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", page.read_text("utf-8"), re.MULTILINE):
            if kind == "currentmodule":
                module = name
            else:
                found.append(name if name.startswith("mechheads.") else f"{module}.{name}")
    return found


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_every_public_name_is_documented(folder: str) -> None:
    space = importlib.import_module(f"mechheads.{folder}".rstrip("."))
    names = set(documented())
    objects = {id(pkgutil.resolve_name(name)) for name in names}
    public = {name: getattr(space, name) for name in space.__all__}
    assert [
        name for name, value in public.items() if f"{space.__name__}.{name}" not in names and id(value) not in objects
    ] == []


def test_each_name_is_documented_once() -> None:
    names = documented()
    assert [name for name in names if names.count(name) > 1] == []


def test_every_page_is_listed() -> None:
    index = (REFERENCE / "index.md").read_text("utf-8")
    pages = {page.stem for page in REFERENCE.glob("*.md")} - {"index"}
    assert pages == set(re.findall(r"^\w+$", index, re.MULTILINE)) == set(re.findall(r"\]\((\w+)\.md\)", index))


def test_the_glossary_defines_each_word_of_the_package_once() -> None:
    text = (REFERENCE.parent / "glossary.md").read_text("utf-8")
    blocks = re.findall(r"^```{glossary}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    terms = re.findall(r"^(\S.*)$", "".join(blocks), re.MULTILINE)
    own = "base run, source run, site, unit, place, wave, window, row, receiver, view, look-alike, ledger"
    assert set(own.split(", ")) <= set(terms)
    assert [term for term in terms if terms.count(term) > 1] == []
