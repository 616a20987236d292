"""Several ledgers as one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechheads.ledger.ledger import Ledger, merge


def write(path: Path, key: str, units: dict[str, float]) -> Path:
    with Ledger(path, key, {"metric": "kl"}) as ledger:
        ledger.remember("waves", [1, 2])
        ledger.commit({name: np.array([value]) for name, value in units.items()})
    return path


def test_merging_copies_units_settings_and_descriptions_and_may_be_repeated(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "k", {"a": 1.0, "b": 2.0}), write(tmp_path / "2", "k", {"b": 2.0, "c": 3.0})
    merged = merge([one, two], tmp_path / "all")
    assert (merged.sweeps, merged.units, merged.new) == (1, 3, 3)
    with Ledger(tmp_path / "all", "k", {}) as ledger:
        assert {name: values.tolist() for name, values in ledger.finished().items()} == {"a": [1], "b": [2], "c": [3]}
        assert ledger.about == {"metric": "kl"}
        assert ledger.settings() == {"waves": [1, 2]}
    assert merge([one, two], tmp_path / "all").new == 0


def test_a_unit_with_other_values_is_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "k", {"a": 1.0}), write(tmp_path / "2", "k", {"a": 1.5})
    with pytest.raises(ValueError, match=r"unit 'a' of .*2 is already in .*all with other values"):
        merge([one, two], tmp_path / "all")


def test_parts_that_were_cut_otherwise_are_refused(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "k", {"a": 1.0}), tmp_path / "2"
    with Ledger(two, "k", {}) as ledger:
        ledger.remember("waves", [2, 1])
        ledger.commit({"b": np.ones(1)})
    with pytest.raises(ValueError, match=r"2 was cut into other batches than the parts before it \(waves\)"):
        merge([one, two], tmp_path / "all")


def test_parts_of_other_sweeps_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "k", {"a": 1.0}), write(tmp_path / "2", "other", {"a": 1.0})
    with pytest.raises(ValueError, match=r"2 does not hold the same sweeps as .*1: something that decides the numbers"):
        merge([one, two], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no ledger"):
        merge([write(tmp_path / "1", "k", {"a": 1.0}), tmp_path / "2"], tmp_path / "all")
    with pytest.raises(ValueError, match="give a list of ledgers"):
        merge(tmp_path / "1", tmp_path / "all")
