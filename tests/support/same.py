"""Whether two results are the same: values to the bit, tables with their types, scores with all that they remember."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult


def assert_same(one: Any, other: Any) -> None:
    """Compare two fields of results, and all that they hold."""
    assert type(one) is type(other)
    if isinstance(one, TableResult):
        assert_same(vars(one), vars(other))
    elif isinstance(one, HeadScores):
        xr.testing.assert_identical(one.dataset, other.dataset)
        assert one.dataset.attrs == other.dataset.attrs
    elif isinstance(one, xr.Dataset):
        xr.testing.assert_identical(one, other)
    elif isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
        for name in one:
            kinds = [[type(cell) for cell in table[name]] for table in (one, other)]
            assert kinds[0] == kinds[1], name
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, Mapping):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other or (one != one and other != other)


def assert_survives(result: HeadScores | TableResult, folder: Path) -> None:
    """A result comes back from a file as it was, and shows, cites and says the same."""
    loaded = type(result).load(result.save(folder / "result.nc"))
    assert_same(loaded, result)
    assert repr(loaded) == repr(result) and loaded._repr_html_() == result._repr_html_()
    assert loaded.citation() == result.citation()
    assert (loaded.name, loaded.unit, loaded.provenance) == (result.name, result.unit, result.provenance)
    if isinstance(result, TableResult):
        pd.testing.assert_frame_equal(loaded.table, result.table, check_exact=True)
