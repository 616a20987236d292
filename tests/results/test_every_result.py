"""What Ctrl-C leaves at worst comes back from a file as it was, and every class of results has a row."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

import mechheads as mh
from mechheads.results.kinds import CURVES, KINDS
from mechheads.results.tables import Curves, TableResult
from support.every_analysis import EVERY, TABLES
from support.same import assert_survives


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
