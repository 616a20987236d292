"""The documentation builds without a warning, misses no public name, and every example in it runs."""

from __future__ import annotations

import doctest
import html
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mechheads

ROOT = Path(__file__).parents[2]
PACKAGE, DOCS = ROOT / "mechheads", ROOT / "docs"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_with_examples() -> list[str]:
    files = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text("utf-8"))
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


SAID = {
    "start": """
assert abs(run.pattern["L23H4"][0, -1, 3] - 0.90) < 0.01
assert effect.heads(1) == (mh.HeadId(23, 4),)
assert abs(effect["L23H4"]["score"] - 0.938) < 0.01
assert again.dataset.identical(effect.dataset)
""",
    "behaviour": """
assert all(before > after + 1000 for before, after in zip(ranks["23_pre"], ranks["24_pre"]))
assert ranks["final_post"] == [0, 0]
""",
    "labels": """
assert labels.counts()["Knowledge"] >= 3
assert labels.table("L23H4").iloc[0][["relation", "is_evidence"]].tolist() == ["country_to_capital", True]
assert labels.dataset["best_relation"].sel(layer=23, head=4, category="Knowledge") == "country_to_capital"
assert young.provenance["ledger"]["animal_to_young"]["kept"] >= 1
""",
    "profile": "assert profile.names('L16H0') == ('previous-token', 'positional')",
}
"""What the text of a page says of its code, where the code does not assert it."""

PAGES = [page for page in sorted(DOCS.glob("*.md")) if python_blocks(page)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("docs")
    options = ["-W", "--keep-going", "-q", "-d", folder / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, folder / "html"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "html"


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def test_no_public_name_is_missing(site: Path) -> None:
    pages = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    documented = set(re.findall(r'id="(?:module-)?mechheads\.(\w+)"', pages))
    assert set(mechheads.__all__) - documented == set()


def test_every_signature_is_parsed(site: Path) -> None:
    """One that is not shows full paths, such as ``~collections.abc.Sequence``, cut at its commas."""
    pages = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    assert [each for each in re.findall(r'<em class="sig-param">(.*?)</em>', pages, re.DOTALL) if "~" in each] == []


def test_the_front_page_has_the_commands_of_the_readme(site: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"<!-- (?:main|test)-command -->\s*```bash\n(.*?)\n```", readme, re.DOTALL)
    assert len(commands) == 2
    assert [command for command in commands if command not in text_of(site / "index.html")] == []


def test_the_three_ideas_are_drawn(site: Path) -> None:
    page = (site / "ideas.html").read_text("utf-8")
    titles = re.findall(r'<svg[^>]+role="img".*?<title>(.*?)</title>', page, re.DOTALL)
    assert titles == ["One primitive", "Recompute only what changes", "One result"]


def test_the_notebook_is_a_page(site: Path) -> None:
    assert "What a head attends to" in text_of(site / "01_first_look.html")


def test_figures_of_the_notebooks_are_drawn(site: Path) -> None:
    page = (site / "02_activation_patching.html").read_text("utf-8")
    assert len(re.findall(r'class="figure" data-figure="\{', page)) == page.count('<img src="data:image/png') == 1
    assert len(re.findall(r'<script[^>]+src="_static/plotly.min.js', page)) == 1
    assert re.search(r"<script[^>]+plotly", (site / "start.html").read_text("utf-8")) is None
    assert (site / "_static" / "plotly.min.js").stat().st_size > 1_000_000


def test_pages_load_no_script_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert pages
    assert [page.name for page in pages if re.search(r'<script[^>]+src="(https?:)?//', page.read_text("utf-8"))] == []


SHARED = {
    mechheads: ("load", "relation_scores"),
    mechheads.behaviour: (
        "composition_scores",
        "copy_suppression",
        "copying_scores",
        "head_examples",
        "indirect_object_roles",
        "retrieval_heads",
        "successor_scores",
    ),
}
"""Functions that several examples call with the same arguments."""


@pytest.fixture(scope="module")
def mh() -> Iterator[ModuleType]:
    """The package; what several examples ask for in the same words is computed once for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in SHARED.items():
            for name in names:
                patch.setattr(module, name, cache(getattr(module, name)))
        yield mechheads


@pytest.mark.parametrize("name", modules_with_examples())
def test_docstring_examples(name: str, mh: ModuleType) -> None:
    module = importlib.import_module(name)
    given = {"mh": mh, "model": mh.load()}
    found = [test for test in doctest.DocTestFinder().find(module, extraglobs=given) if test.examples]
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in found:
        runner.run(test, out=said.append)
    assert found
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("mh")
def test_code_of_the_pages(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in [*python_blocks(page), SAID.get(page.stem, "")]:
        exec(compile(block, str(page), "exec"), names)
