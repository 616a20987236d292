"""Results of a model that knows, and what Ctrl-C leaves at worst, come back from a file as they were.

The others are in tests/laws/test_every_analysis.py.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.results.kinds import CURVES, KINDS
from mechheads.results.tables import Curves, TableResult
from support.every_analysis import EVERY, TABLES
from support.same import assert_survives

CAPITALS: dict[str, Any] = {"n": 2, "shots": 1}


MADE_BY_THE_DEFAULT_MODEL: dict[str, Callable[[mh.Model], TableResult]] = {
    "removal": lambda model: mh.labels.cumulative_removal(
        model, "country_to_capital", ["L23H4", "L29H2"], draws=1, **CAPITALS
    ),
    "CausalEvidence": lambda model: mh.labels.relation_evidence(
        model, "country_to_capital", heads=["L23H4"], **CAPITALS
    ),
}


@pytest.mark.release
@pytest.mark.parametrize("name", MADE_BY_THE_DEFAULT_MODEL)
def test_what_asks_for_a_model_that_knows_survives_a_file(name: str, model: mh.Model, tmp_path: Path) -> None:
    result = MADE_BY_THE_DEFAULT_MODEL[name](model)
    assert_survives(result, tmp_path)


def test_what_ctrl_c_left_survives_a_file(llama: mh.Model, tmp_path: Path) -> None:
    """Missing numbers, answers and verdicts, and a table without rows."""
    whole = EVERY["refusal test"].run(llama)
    assert isinstance(whole, mh.safety.RefusalTest)
    answers = whole.answers.assign(verdict=["refused", None, *[None] * (len(whole.answers) - 2)])
    table = whole.table.assign(loss=np.nan)
    metadata = whole.provenance | {"interrupted": True}
    part = replace(whole, answers=answers, table=table, provenance=metadata)
    assert part.interrupted
    assert_survives(part, tmp_path)
    trace = mh.HeadScores.from_scores(
        np.full((3, 4, 1), np.nan), name="n", unit="nats", kind="sahara", extra={"step": [1]}
    )
    columns = ["size", "head", "group", "singly", "random", "random_low", "random_high"]
    nothing = mh.safety.HeadGroup((), trace, pd.DataFrame([], columns=columns), {"interrupted": True})
    assert_survives(nothing, tmp_path)


def test_every_class_of_results_has_a_kind_of_its_own_and_a_row(llama: mh.Model) -> None:
    for module in pkgutil.walk_packages(mh.__path__, "mechheads."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = [each for each in TableResult.__subclasses__() if each.__module__.startswith("mechheads.")]
    kinds = [each.KIND for each in ours]
    assert len(kinds) == len(set(kinds))
    rows = [EVERY[name].run(llama) for name in TABLES]
    assert {each.__name__ for each in ours} == {*(type(row).__name__ for row in rows), "CausalEvidence"}
    curves = {name for name, kind in KINDS.items() if kind.plot == CURVES}
    assert curves == {row.kind for row in rows if isinstance(row, Curves)} | {"removal"}
