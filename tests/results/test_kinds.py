"""The table of kinds: whole, and right about the package."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mechheads
from mechheads.results.kinds import HEATMAP, KINDS, kind_of, papers
from mechheads.results.scores import HeadScores

PACKAGE = Path(mechheads.__file__).parent


def named_kinds() -> set[str]:
    """Every kind that the package gives to scores, or a class of results has; the explorer's pages hold no results."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.is_relative_to(PACKAGE / "explorer"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") not in ("argsort", "sort_values"):
                found |= {each.value for each in node.keywords if each.arg == "kind"}
            elif isinstance(node, ast.Dict):
                keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
                found |= {value for key, value in zip(keys, node.values, strict=True) if key == "kind"}
            elif isinstance(node, ast.Assign) and [getattr(to, "id", "") for to in node.targets] == ["KIND"]:
                found.add(node.value)
    return {node.value for node in found if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_kind_of_the_package_is_in_the_table() -> None:
    assert named_kinds() - set(KINDS) == {"curves"}  # the analysis that curves are of is a field


@pytest.mark.parametrize("name", KINDS)
def test_papers_and_figures_are_there(name: str) -> None:
    kind = KINDS[name]
    assert set(kind.papers) <= set(papers())
    module, _, function = (kind.plot or HEATMAP).partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert kind.plot or not kind.needs


def test_every_paper_has_its_key_and_is_used() -> None:
    assert all(entry.startswith("@") and entry.endswith("\n}") for entry in papers().values())
    used = {key for kind in KINDS.values() for key in kind.papers}
    assert used == set(papers()) - {"nanda2022transformerlens"}


def test_unit_and_null_are_those_of_the_kind_unless_values_cannot_be_below_0() -> None:
    values = np.arange(12.0).reshape(1, 2, 6)
    ships = HeadScores.from_values(values, name="n", kind="ships")
    assert ships.unit == "nats" and np.isnan(ships.dataset["p_value"]).all()
    assert HeadScores.from_values(values, name="n", kind="ships", unit="bits").unit == "bits"
    own = HeadScores.from_values(values, name="n", kind="my own")
    assert own.unit == "" and np.isfinite(own.dataset["p_value"]).all()
    positive = HeadScores.from_values(values, name="n", kind="my own", bounds=(0, None))
    assert np.isnan(positive.dataset["p_value"]).all()
    assert HeadScores.from_scores(values[..., 0], name="n", kind="generalized_ships").unit == "degrees"


def test_a_table_without_a_figure_says_so() -> None:
    sets = mechheads.patching.SetScores((), np.empty((0, 1)), pd.DataFrame(), "n", "u", {})
    with pytest.raises(ValueError, match=r"SetScores has no figure; plot its \.table"):
        sets.plot()
    assert kind_of(sets.KIND).plot is None
