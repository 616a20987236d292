"""Ledgers that somebody else wrote, and ledgers that met a full disk while they were made."""

from __future__ import annotations

import json
import resource
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from mechheads.ledger.ledger import Ledger

VALUES = {"L0H0 0": np.array([0.5, 1.0])}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "a.ledger", "a key", {"metric": "kl"}) as ledger:
        ledger.commit(VALUES)
    return tmp_path / "a.ledger"


def change(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.executescript(script)


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("ALTER TABLE units RENAME TO other; CREATE VIEW units AS SELECT * FROM other", "view 'units'"),
        ("CREATE TRIGGER t AFTER INSERT ON sweeps BEGIN DELETE FROM units; END", "trigger 't'"),
        ("CREATE VIEW more AS SELECT * FROM units", "view 'more'"),
        ("ALTER TABLE units ADD COLUMN more TEXT AS (name || name)", "table 'units'"),
        ("ALTER TABLE settings ADD COLUMN more", "table 'settings'"),
        ("CREATE TABLE more (a)", "table 'more'"),
        ("CREATE INDEX more ON units (upper(name))", "index 'more'"),
        ("CREATE VIRTUAL TABLE more USING fts5(a)", "table 'more'"),
        ("DROP TABLE settings; CREATE TABLE settings (sweep, name, value, checksum)", "table 'settings'"),
    ],
)
@pytest.mark.parametrize("use", [Ledger.list, Ledger.check, lambda path: Ledger(path, "a key", {})])
def test_a_ledger_of_other_parts_is_refused_before_anything_in_it_is_read(
    path: Path, script: str, what: str, use: Callable[[Path], object]
):
    change(path, script)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"is not a ledger of mechheads .its {what} is not one that mechheads makes"):
        use(path)
    assert path.read_bytes() == before


def test_a_trigger_in_the_file_of_what_was_written_last_is_refused(path: Path):
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TRIGGER t AFTER INSERT ON sweeps BEGIN DELETE FROM units; END")
        file.commit()
        assert Path(f"{path}-wal").stat().st_size
        with pytest.raises(ValueError, match="its trigger 't' is not one that mechheads makes"):
            Ledger.list(path)


@pytest.mark.parametrize("shape", ["[3]", "[-1, -2]", "2", '["2"]', "[2.0]", "[1000000, 1000000]"])
def test_a_unit_of_another_size_than_it_says_is_refused(path: Path, shape: str):
    from mechheads.ledger.ledger import _checksum

    data = VALUES["L0H0 0"].tobytes()
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE units SET shape = ?, checksum = ?", (shape, _checksum("L0H0 0", "<f8", shape, data)))
        file.commit()
    with pytest.raises(ValueError, match=r"is damaged .'L0H0 0' in units is not what was stored"):
        Ledger.list(path)


@pytest.mark.needs(sys.platform == "linux", "a limit on the size of files")
def test_a_ledger_that_met_a_full_disk_while_it_was_made_works_once_there_is_room(tmp_path: Path):
    """A file may not grow beyond so many bytes, as on a disk without room."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    outcomes = []
    for size in range(0, 72 * 1024, 2048):
        path = tmp_path / f"{size}.ledger"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
        try:
            with Ledger(path, "a key", {}) as ledger:
                ledger.commit(VALUES)
            outcomes.append("made")
        except (ValueError, OSError, sqlite3.Error):
            outcomes.append("full")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with Ledger(path, "a key", {}) as ledger:
            ledger.commit(VALUES)
            assert ledger.finished()["L0H0 0"].tolist() == [0.5, 1.0]
    assert {"made", "full"} == set(outcomes)
    assert not [rest for rest in tmp_path.iterdir() if ".tmp" in rest.name]


def test_a_ledger_that_is_made_consists_of_what_is_checked(path: Path):
    (found,) = Ledger.list(path)
    assert (found["key"], found["about"], found["units"]) == ("a key", json.loads('{"metric": "kl"}'), 1)
