"""The documentation names what there is: every figure in the gallery, every public name for assistants, every paper."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import mechheads
from docs.gallery import GALLERY, STORED, THUMBS, anchor, kinds
from docs.llms import text
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
    with_figure = {f"`{kind}`" for kind, metadata in KINDS.items() if metadata.plot is not None}
    assert with_figure <= set(re.findall(r"`\w+`", kinds()))


def test_the_text_for_assistants_is_fresh() -> None:
    kept = (DOCS / "llms.txt").read_text("utf-8")
    assert text() == kept, "run `python -m docs.llms`"
    for folder in mechheads._FOLDERS:
        assert all(f"- `{name}" in kept for name in getattr(mechheads, folder).__all__), folder


def test_every_paper_has_a_claim_and_what_is_cited_exists() -> None:
    claims = page("claims")
    assert papers().keys() <= set(re.findall(r"`(\w+)`", claims))
    cited = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", claims)
    assert len(cited) > 10
    for path, name in cited:
        assert f"\ndef {name}(" in (ROOT / path).read_text("utf-8"), f"{path}::{name}"
    assert all((ROOT / path).exists() for path in re.findall(r"`(benchmarks/\w+\.json)`", claims))


def test_notebooks_use_the_public_face_only() -> None:
    """What they import from a folder of the package is a public name of it."""
    imports = re.compile(r"^(?:from (mechheads[\w.]*) import ([\w, ]+)|import (mechheads[\w.]*).*)$", re.MULTILINE)
    for notebook in sorted((ROOT / "notebooks").glob("*.py")):
        for folder, names, whole in imports.findall(notebook.read_text("utf-8")):
            assert not whole or whole == "mechheads", notebook.name
            if folder:
                public = set(mechheads.__all__ if folder == "mechheads" else getattr(mechheads, folder[10:]).__all__)
                assert set(names.split(", ")) <= public, f"{notebook.name}: {names}"


def test_the_pages_stay_short() -> None:
    """At most 32,000 words in all: a page that grows takes something away from another."""
    words = {path.name: len(path.read_text("utf-8").split()) for path in DOCS.glob("*.md")}
    assert sum(words.values()) <= 32_000, words


def texts_for_users() -> dict[str, str]:
    """The docs; notebooks; what is said of results; commands; the explorer's page."""
    files = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "notebooks").glob("*.py")]
    package = ROOT / "mechheads"
    files += [*(package / "data" / "kinds").glob("*.toml"), package / "cli.py"]
    files += [*(package / "explorer" / "front" / "src").rglob("*.ts*")]
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in files}


def test_one_name_stands_for_one_idea() -> None:
    words = tomllib.loads((DOCS / "words.toml").read_text("utf-8"))["word"]
    assert len(words) >= 10
    texts = texts_for_users()
    for word in words:
        for other in word["not"]:
            pattern = re.compile(rf"\b{other}s?\b".replace(" ", r"\s+"), re.IGNORECASE)
            found = {name: match[0] for name, text in texts.items() if (match := pattern.search(text))}
            assert not found, f"say {word['name']!r} ({word['means']})"
