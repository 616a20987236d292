"""The documentation builds without a warning, misses no public name, and every example in it runs."""

from __future__ import annotations

import doctest
import html
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mechheads
from support.levels import few

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
    "first_experiment": """
assert [abs(effect[head]["score"] - said) < 0.02 for head, said in zip(few, (0.69, 0.22, 0.07, 0.0))] == [True] * 4
assert [effect[head]["p_family"] < 0.05 for head in few] == [True, True, True, False]
assert [round(float(lost[head]["score"]), 1) for head in few[:2]] == [-4.8, -1.6]
assert round(float(direct["L23H4"]["score"]), 1) == -11.6
""",
    "one_head": """
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

PAGES = [page.stem for page in sorted(DOCS.glob("*.md")) if python_blocks(page)]
TAKE_LONG = ("scale", "circuits")
"""Pages whose code takes half a minute or more."""


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def test_the_site(tmp_path: Path) -> None:
    """It builds with warnings as errors, and holds what it should."""
    options = ["-W", "--keep-going", "-q", "-d", tmp_path / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "html"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    site = tmp_path / "html"

    api = "".join(page.read_text("utf-8") for page in (site / "api").glob("*.html"))
    documented = set(re.findall(r'id="(?:module-)?mechheads\.(\w+)"', api))
    assert set(mechheads.__all__) - documented == set()
    unparsed = [each for each in re.findall(r'<em class="sig-param">(.*?)</em>', api, re.DOTALL) if "~" in each]
    assert unparsed == [], "signatures with full paths, cut at their commas"

    readme = (ROOT / "README.md").read_text("utf-8")
    commands = re.findall(r"<!-- (?:main|test)-command -->\s*```bash\n(.*?)\n```", readme, re.DOTALL)
    assert len(commands) == 2
    assert [command for command in commands if command not in text_of(site / "index.html")] == []

    drawn = (site / "ideas.html").read_text("utf-8")
    titles = re.findall(r'<svg[^>]+role="img".*?<title>(.*?)</title>', drawn, re.DOTALL)
    assert titles == ["One primitive", "Recompute only what changes", "One result"]

    assert "What a head attends to" in text_of(site / "01_first_look.html")
    page = (site / "02_activation_patching.html").read_text("utf-8")
    assert len(re.findall(r'class="figure" data-figure="\{', page)) == page.count('<img src="data:image/png') == 1
    assert len(re.findall(r'<script[^>]+src="_static/plotly.min.js', page)) == 1
    assert re.search(r"<script[^>]+plotly", (site / "start.html").read_text("utf-8")) is None
    assert (site / "_static" / "plotly.min.js").stat().st_size > 1_000_000

    pages = sorted(site.rglob("*.html"))
    assert pages
    elsewhere = re.compile(r'<script[^>]+src="(https?:)?//')
    assert [page.name for page in pages if elsewhere.search(page.read_text("utf-8"))] == []


def test_what_the_readme_shows_is_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Heads and columns are the same, and numbers to the rounding of other processors."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)[0]
    exec(code, {})
    shown = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    printed = capsys.readouterr().out.splitlines()
    number = re.compile(r"-?\d*\.\d+")
    assert [number.sub("", line).split() for line in printed] == [number.sub("", line).split() for line in shown]
    assert [float(each) for each in number.findall("".join(printed))] == pytest.approx(
        [float(each) for each in number.findall("".join(shown))], abs=0.04
    )


SHARED = {
    mechheads: ("load", "relation_scores"),
    mechheads.behaviour: ("head_examples",),
}
"""Functions that several examples call with the same arguments."""


@cache
def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, computed once for the same arguments, however they are written."""
    signature, kept = inspect.signature(function), {}

    def call(*args: Any, **given: Any) -> Any:
        bound = signature.bind(*args, **given)
        bound.apply_defaults()
        key = tuple(repr(value) if isinstance(value, (dict, list)) else value for value in bound.arguments.values())
        if key not in kept:
            kept[key] = function(*args, **given)
        return kept[key]

    return call


@pytest.fixture(scope="module")
def mh() -> Iterator[ModuleType]:
    """The package; what several examples ask for is computed once for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        for module, names in SHARED.items():
            for name in names:
                patch.setattr(module, name, remembered(getattr(module, name)))
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


@pytest.mark.parametrize("page", few(PAGES, *(set(PAGES) - set(TAKE_LONG))))
@pytest.mark.usefixtures("mh")
def test_code_of_the_pages(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in [*python_blocks(DOCS / f"{page}.md"), SAID.get(page, "")]:
        exec(compile(block, page, "exec"), names)
