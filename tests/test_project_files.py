"""The files around the package agree: commit hooks and workflows; and what no test may do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
CI = (ROOT / ".ci" / "run").read_text("utf-8")


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text("utf-8"))


def test_commit_hooks_are_the_style_checks_of_ci() -> None:
    (repo,) = load(".pre-commit-config.yaml")["repos"]
    checks = re.findall(
        r'^"\$work/dev/bin/(ruff .+)$|\.venv/bin/(pyright) --pythonpath', CI.replace('ruff"', "ruff"), re.M
    )
    assert [hook["entry"] for hook in repo["hooks"]] == [ruff or pyright for ruff, pyright in checks]
    assert repo["repo"] == "local" and {hook["language"] for hook in repo["hooks"]} == {"system"}


@pytest.mark.parametrize(("workflow", "script"), [("ci", ".ci/run"), ("release", ".ci/release")])
def test_the_workflows_run_the_scripts_on_the_python_of_the_project(workflow: str, script: str) -> None:
    steps = load(f".github/workflows/{workflow}.yml")["jobs"]["run"]["steps"]
    assert steps[-1] == {"run": script}
    (python,) = (step["with"] for step in steps if "setup-python" in step.get("uses", ""))
    assert (python["python-version"], python["cache"]) == ("3.11", "pip")
    assert load(".readthedocs.yaml")["build"]["tools"]["python"] == "3.11"


def test_no_test_skips_itself() -> None:
    """What cannot run in an environment is marked ``needs`` and left out; nothing else is passed over."""
    passed_over = re.compile(r"pytest\.(?:mark\.)?(?:skip|skipif|xfail|importorskip)\b")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert [path.name for path in tests if passed_over.search(path.read_text("utf-8"))] == []


ROUNDED = {
    *("average", "corr", "cumsum", "dot", "einsum", "exp", "log", "log_softmax", "logsumexp", "matmul", "mean"),
    *("median", "norm", "prod", "quantile", "sigmoid", "softmax", "sqrt", "std", "tanh", "var"),
}
"""Functions whose last bits are other ones on other processors."""
TO_THE_BIT = {"array_equal", "assert_array_equal", "equal"}


def computed(node: ast.AST) -> bool:
    """Whether an expression computes floats by one of these functions, and neither rounds nor compares them."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"approx", "round", "int", "len", "str", "repr"}:
            return False
        if name in ROUNDED:
            return True
    return not isinstance(node, ast.Compare) and any(map(computed, ast.iter_child_nodes(node)))


def compared_to_the_bit(source: str) -> Iterator[int]:
    """The lines of tests that ask whether computed floats are equal to the bit."""
    for node in ast.walk(ast.parse(source)):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare) and any(isinstance(operator, ast.Eq) for operator in node.ops):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in TO_THE_BIT:
            sides = node.args
        tolerant = any("approx(" in ast.unparse(side) for side in sides)
        exact = any(isinstance(side, ast.Constant) and side.value in (0, 1) for side in sides)
        if not (tolerant or exact) and any(map(computed, sides)):
            yield node.lineno  # type: ignore[attr-defined]


def test_no_test_rests_on_the_last_bit_of_a_computed_float() -> None:
    """Other processors, and other numbers of threads, round otherwise."""
    paths = [*(ROOT / "tests").rglob("*.py")]
    assert len(paths) > 100
    assert [f"{p.relative_to(ROOT)}:{n}" for p in paths for n in compared_to_the_bit(p.read_text("utf-8"))] == []
