"""The documentation names what there is: every figure in the gallery, every public name for assistants, every paper."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import mechheads
from docs.gallery import GALLERY, STORED, THUMBS, anchor, kinds
from mechheads.results.kinds import KINDS, papers

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NO_FIGURES = {"mh.plots.save"}
"""Public names among the figures that draw none."""


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text("utf-8")


def test_every_figure_is_in_the_gallery() -> None:
    drawn = {f"mh.plots.{name}" for name in mechheads.plots.__all__} - NO_FIGURES
    drawn |= {f"mh.studies.{name}" for name in mechheads.studies.__all__ if name.endswith("_figure")}
    assert drawn == {name for shown in GALLERY.values() for name in shown.names}, "add it to docs/gallery.py"
    for name, shown in GALLERY.items():
        assert {"data", "layout"} <= json.loads((STORED / f"{name}.json").read_text("utf-8")).keys()
        assert (THUMBS / f"{name}.png").stat().st_size < 15_000
        assert (DOCS / f"{shown.page}.md").exists(), shown.page
        assert f"figures.md#{anchor(name)})" in page("index"), f"no question leads to {shown.title!r}"


def test_the_gallery_says_what_every_kind_of_result_draws() -> None:
    with_figure = {f"`{kind}`" for kind, about in KINDS.items() if about.plot is not None}
    assert with_figure <= set(re.findall(r"`\w+`", kinds()))


def test_the_text_for_assistants_is_fresh() -> None:
    """In a process of its own: the types that tests check at run time are written in another way."""
    code = "from docs.llms import text; print(text(), end='')"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    kept = (DOCS / "llms.txt").read_text("utf-8")
    assert made == kept, "run `python -m docs.llms`"
    for folder in mechheads._FOLDERS:
        assert all(f"- `{name}" in kept for name in getattr(mechheads, folder).__all__), folder


def test_every_paper_has_a_claim_and_what_is_cited_exists() -> None:
    text = page("claims")
    assert papers().keys() <= set(re.findall(r"`(\w+)`", text))
    cited = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    assert len(cited) > 15
    for path, name in cited:
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
    assert all((ROOT / path).exists() for path in re.findall(r"`(benchmarks/\w+\.json)`", text))
