"""TableResult: files that give back what was saved."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings, strategies as st

from mechheads.heads import HeadId
from mechheads.results.dataset import with_checksum
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult, from_dataset, to_dataset
from support.same import assert_same, assert_survives


@dataclass(frozen=True, eq=False, repr=False)
class Made(TableResult):
    """One field of every sort."""

    KIND = "made"

    name: str
    unit: str
    table: pd.DataFrame
    values: np.ndarray
    heads: tuple[tuple[HeadId, ...], ...]
    scores: dict[str, HeadScores]
    more: Any
    provenance: dict[str, Any]


@dataclass(frozen=True, eq=False, repr=False)
class Other(TableResult):
    KIND = "other"
    name, unit = "other", ""

    table: pd.DataFrame
    inside: tuple[Made, ...]
    provenance: dict[str, Any]


def made(**changed: Any) -> Made:
    scores = HeadScores.from_values(
        np.arange(24.0).reshape(2, 2, 2, 3),
        name="n",
        unit="u",
        kind="ships",
        extra={"step": ["a", "b\0"]},
    ).assign(by_step=("step", [True, False]))
    table = pd.DataFrame({"which": ["a", None], "k": [1, 2], "no heads": [0.1, np.nan], "done": [True, False]})
    whole: dict[str, Any] = {
        "name": "made",
        "unit": "nats",
        "table": table,
        "values": np.array([[1.0, np.nan], [-0.0, np.inf]]),
        "heads": ((HeadId(0, 1), HeadId(2, 3)), ()),
        "scores": {"L0/H1 \0": scores},
        "more": None,
        "provenance": {"interrupted": False, "n": [1, 2.5], "versions": {"torch": "2.13.0"}},
    }
    return Made(**whole | changed)


texts = st.text(max_size=6) | st.sampled_from(["", "\0", "dict", "nan", "None", "é\u0301", "\n", "=1+1"])
numbers = st.floats() | st.integers(-(2**53), 2**53)
json_like = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
heads = st.builds(HeadId, st.integers(0, 40), st.integers(0, 40))
fields = st.recursive(
    json_like | heads, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(texts, inner, max_size=3)
)
columns = {
    "texts": texts,
    "texts and none": texts | st.none(),
    "texts and nan": texts | st.just(np.nan),
    "floats": st.floats(),
    "whole": st.integers(-(2**62), 2**62),
    "flags": st.booleans(),
}


def drawn(data: st.DataObject) -> Made:
    """A result with any texts and numbers in it."""
    rows = data.draw(st.integers(0, 4))
    table = pd.DataFrame(
        {column: data.draw(st.lists(cells, min_size=rows, max_size=rows)) for column, cells in columns.items()}
    )
    shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
    values = np.random.default_rng(0).normal(size=shape).astype(data.draw(st.sampled_from(["f4", "f8", "i8"])))
    return made(table=table, more=data.draw(fields), values=values, name=data.draw(texts).replace("\0", ""))


@settings(max_examples=100)
@given(st.data())
def test_a_dataset_gives_back_all_fields(data: st.DataObject) -> None:
    whole = vars(drawn(data))
    assert_same(from_dataset(to_dataset(whole)), whole)


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_a_file_gives_back_the_result(tmp_path_factory: Any, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("made")
    assert_survives(drawn(data), folder)
    assert [file.name for file in folder.iterdir()] == ["result.nc"]


def test_results_in_results_survive_a_file(tmp_path: Path) -> None:
    assert_survives(Other(pd.DataFrame({"x": []}), (made(), made(unit="logits")), {"interrupted": True}), tmp_path)
    assert_survives(made(heads=(), scores={}, table=pd.DataFrame([], columns=["head", "score"])), tmp_path)


def test_a_file_of_another_result_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "result.nc"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Made.load(path)
    made().save(path)
    for other in (Other, TableResult):
        with pytest.raises(ValueError, match=r"result\.nc contains a Made; use Made\.load"):
            other.load(path)
    with pytest.raises(ValueError, match=r"result\.nc contains no head scores, but a result of the kind 'made'"):
        HeadScores.load(path)
    HeadScores.from_scores(np.ones((1, 2)), name="n", unit="u", kind="ships").save(path)
    with pytest.raises(ValueError, match=r"result\.nc contains no Made, but a result of the kind 'ships'"):
        Made.load(path)
    xr.Dataset({"rain": ("day", [1.0])}).to_netcdf(path, engine="h5netcdf")
    path.write_bytes(with_checksum(path.read_bytes()))
    with pytest.raises(ValueError, match=r"result\.nc was not written by mechheads: it contains no Made"):
        Made.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"name": None},
        {"name": {"code": "os"}},
        {"table": {"table": {"name": "x", "rows": 1, "columns": []}}, "k": 0},
        {"heads": {"head": "L1"}},
        {"values": {"array": "nowhere"}},
        {"more": {"result": "Path", "fields": {}}},
    ],
)
def test_fields_that_lie_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = made().save(tmp_path / "result.nc")
    with xr.open_dataset(path, engine="h5netcdf") as plain:
        whole = plain.load()
    content = json.loads(whole["fields"].item())
    content = {key: part for key, part in (content | change).items() if part is not None}
    whole = whole.assign(fields=((), np.array(json.dumps(content), dtype=object)))
    path.unlink()
    whole.to_netcdf(path, engine="h5netcdf")
    path.write_bytes(with_checksum(path.read_bytes()))
    with pytest.raises(ValueError, match=r"result\.nc is damaged, or was changed after it was saved: "):
        Made.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": {1, 2}}, "more is a set, which cannot be saved"),
        ({"more": ({"a": 1j},)}, r"more\.0\.0 is a complex, which cannot be saved"),
        ({"table": pd.DataFrame({"a/b": [1]})}, "table has a column 'a/b'; rename it to letters"),
        ({"table": pd.DataFrame({"a": [1]}, index=["x"])}, "table has an index that is not 0, 1, 2"),
        ({"table": pd.DataFrame({"a": ["x", 1j]})}, r"table\.a\.1 is a complex, which cannot be saved"),
        ({"values": np.array(["x"])}, "values is a ndarray, which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        made(**change).save(tmp_path / "made.nc")
    assert list(tmp_path.iterdir()) == []


def test_the_comparison_sees_a_bit() -> None:
    for change in ({"values": np.array([[1.0, np.nan], [0.0, np.inf]])}, {"heads": ([HeadId(0, 1)],)}, {"unit": "x"}):
        with pytest.raises(AssertionError):
            assert_same(made(), made(**change))
