"""The examples of CONTRIBUTING.md work: put where the page says, they pass their own tests and those of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
EXAMPLES = re.findall(r"^\*\*`(\S+)`\*\*\n\n```\w+\n(.*?)^```", CONTRIBUTING, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests, with every example put into the file that the page names."""
    tree = tmp_path_factory.mktemp("contribution")
    for folder in ("mechheads", "docs/api", "tests/support", "tests/slow"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "notebooks").mkdir()
    (tree / "tests" / "plots").mkdir()
    for path in ("pyproject.toml", "README.md", "docs/*.md", "notebooks/*.py", "tests/plots/test_look.py"):
        for file in ROOT.glob(path):
            shutil.copy(file, tree / file.relative_to(ROOT))
    for name in ("conftest.py", "test_docstrings.py", "test_package.py", "test_reference.py"):
        shutil.copy(ROOT / "tests" / name, tree / "tests")
    for name, text in EXAMPLES:
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text("utf-8") if path.exists() else ""
        if path.name == "__init__.py":
            names = re.findall(r"import (\w+)", text)
            text += f"__all__ += {names}\n"
        path.write_text(f"{before}\n\n{text}" if before else text, "utf-8")
    return tree


def test_examples_add_to_files_that_exist_and_make_one_test_each() -> None:
    names = [name for name, _ in EXAMPLES]
    tests = [name for name in names if name.startswith("tests/")]
    assert len(tests) == CONTRIBUTING.count("\n## Add ") - 1 == 5  # a view has the test of all views
    assert [name for name in names if name.startswith("docs/") and not (ROOT / name).exists()] == []
    assert [name for name in names if name.endswith(("basic.py", "__init__.py")) and not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_the_examples_pass_their_tests_and_those_of_the_package(tree: Path) -> None:
    tests = [name for name, _ in EXAMPLES if name.startswith("tests/")]
    tests += [f"tests/test_package.py::{name}" for name in ("test_imports_run_down_only", "test_results_know_no_model")]
    with_doctests = [name for name, text in EXAMPLES if name.endswith(".py") and ">>> " in text]
    modules = [name.removesuffix(".py").replace("/", ".") for name in with_doctests]
    tests += [f"tests/slow/test_docs.py::test_docstring_examples[{module}]" for module in modules]
    tests += ["tests/test_reference.py", "tests/test_docstrings.py", "tests/plots/test_look.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *tests]
    env = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_links_lead_to_headings() -> None:
    headings = {re.sub(r"\W+", "-", line.lower()) for line in re.findall(r"^## (.*)$", CONTRIBUTING, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", CONTRIBUTING)) == headings


def test_named_files_exist() -> None:
    made = {name for name, _ in EXAMPLES} | {".venv/bin/python"}
    named = set(re.findall(r"`((?:mechheads|tests|docs|\.\w+)/[\w./]*|\w+\.(?:md|txt))`", CONTRIBUTING))
    assert {name for name in named - made if not (ROOT / name).exists()} == set()


def test_the_test_of_each_algorithm_exists_and_runs_by_the_readmes_command() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", CONTRIBUTING)
    assert len(named) > 40
    for file, name in named:
        texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob(file) if path.parent.name != "slow"]
        (before,) = (text.partition(f"\ndef {name}(")[0] for text in texts if f"\ndef {name}(" in text)
        decorators = re.findall(r"^@pytest\.mark\.(?:slow|release)", before.rpartition("\n\n\n")[2], re.MULTILINE)
        assert not decorators, f"{file}::{name}"
