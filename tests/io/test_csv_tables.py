"""Tables as CSV: nothing that a spreadsheet would run, numbers untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mechheads.io.write import write_csv


def written(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    write_csv(table, folder / "t.csv")
    assert [file.name for file in folder.iterdir()] == ["t.csv"]
    return pd.read_csv(folder / "t.csv", dtype=str, keep_default_na=False)


@pytest.mark.parametrize("dtype", [object, "str", "category"])
def test_formulas_become_text(dtype: object, tmp_path: Path) -> None:
    run, plain = ["=1+1", "+cmd|calc", "-2+3", "@SUM(A1)", "\t=1", "-"], ["plain", "a=b", "", "-0.5", "+1e-3", "-inf"]
    found = written(pd.DataFrame({"=name": pd.Series(run + plain, dtype=dtype)}), tmp_path)
    assert found.to_dict("list") == {"'=name": [*(f"'{cell}" for cell in run), *plain]}


def test_numbers_stay_numbers(tmp_path: Path) -> None:
    table = pd.DataFrame({"score": [-0.5, np.nan], "n": [-3, 4], "yes": [True, False], "any": [-1.5, "-x"]})
    assert written(table, tmp_path).to_dict("list") == {
        "score": ["-0.5", ""],
        "n": ["-3", "4"],
        "yes": ["True", "False"],
        "any": ["-1.5", "'-x"],
    }
