"""The ledger: what is committed stays, bit for bit, whatever becomes of the process; what is no ledger stays as is."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechheads.ledger import ledger as store
from mechheads.ledger.ledger import Ledger
from support.twins import run_at_once

NAN = np.array([0x7FF8000000000000, 0x7FF8000000000001, 0xFFF0000000ABCDEF], dtype=np.uint64).view(np.float64)
VALUES = {
    "L0H0": np.array([1.5, -0.0, np.inf, -np.inf, 5e-324, *NAN]),
    "L0H1, pos 3": np.arange(6.0).reshape(2, 3)[:, ::-1],
    "scalar ü": np.array(np.pi),
    "": np.zeros((0, 4)),
    "large": np.random.default_rng(0).normal(size=5000),
}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two ledgers hold the same, to the bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype == np.float64
        and one[name].shape == other[name].shape
        and one[name].tobytes() == other[name].tobytes()
        for name in one
    )


def test_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "a name? with #signs %20.ledger"
    with Ledger(path, "key", {}) as ledger:
        assert ledger.finished() == {}
        ledger.commit(VALUES)
        assert same(ledger.finished(), VALUES)
    with Ledger(str(path), "key", {}) as ledger:
        found = ledger.finished()
        assert same(found, VALUES)
        assert list(found) == list(VALUES)
        found["large"] += 1  # a copy
        assert same(ledger.finished(), VALUES)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_two_sweeps_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "two.ledger"
    with Ledger(path, "one", {"metric": "kl"}) as one, Ledger(path, "two", {"metric": "ü", "n": [1, None]}) as two:
        one.commit({"a": np.array([1.0]), "b": np.array([2.0])})
        two.commit({"a": np.array([3.0])})
        assert (one.remember("chunk", 8), two.remember("chunk", 9)) == (8, 9)
        assert same(two.finished(), {"a": np.array([3.0])})
        assert same(one.finished(), {"a": np.array([1.0]), "b": np.array([2.0])})
    with Ledger(path, "one", {"metric": "another"}) as one:
        assert (one.remember("chunk", 1), one.remember("order", [1, "a"])) == (8, [1, "a"])
    first, second = Ledger.list(path)
    assert (first["key"], first["metadata"], first["units"]) == ("one", {"metric": "kl"}, 2)
    assert (second["key"], second["metadata"], second["units"]) == ("two", {"metric": "ü", "n": [1, None]}, 1)
    assert first["started"].startswith("20")
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_all_units_of_a_commit_or_none(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.ledger", "key", {}) as ledger:
        ledger.commit({"a": NAN, "b": np.zeros(2)})
        ledger.commit({"a": NAN.copy()})  # the same bits again
        ledger.commit({})
        for other in (NAN[:2], NAN[:, None]):
            with pytest.raises(ValueError, match=r"unit 'a' is already in .*a\.ledger with the shape \[3\]"):
                ledger.commit({"c": np.ones(1), "a": other})
        with pytest.raises(ValueError, match="unit 'd' is float32; a ledger stores float64"):
            ledger.commit({"c": np.ones(1), "d": np.ones(1, np.float32)})
        assert same(ledger.finished(), {"a": NAN, "b": np.zeros(2)})


def test_the_first_commit_of_a_unit_counts_for_every_process(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.ledger", "key", {}) as one, Ledger(tmp_path / "a.ledger", "key", {}) as two:
        assert same(one.commit({"a": np.ones(2)}), {"a": np.ones(2)})
        assert same(two.commit({"a": np.zeros(2), "b": NAN}), {"a": np.ones(2), "b": NAN})
        assert same(one.finished(), {"a": np.ones(2), "b": NAN})


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.ledger", "key", {}) as ledger:
        ledger.commit({"a": np.zeros(2)})
        ledger._file.execute("PRAGMA max_page_count = 10")
        with pytest.raises(OSError, match=r"cannot write to the ledger .*a\.ledger: .*full"):
            ledger.commit({"b": np.ones(1), "c": np.zeros(10**5)})
        assert same(ledger.finished(), {"a": np.zeros(2)})


LEFT = {f"L{j}H{i}": np.full(300, i / 7) for j in range(2) for i in range(9)}


def killed(folder: Path, *, before: int = 9, checkpointed: bool = False) -> Path:
    """A ledger as a killed process leaves it: the first units in the file, the others in ``-wal`` beside it.

    With ``checkpointed`` the process was killed just as it had begun to bring these over: the file's first page
    counts pages that are not there yet.
    """
    folder.mkdir()
    path, twin = folder / "sweeps.ledger", folder / "twin"
    names = list(LEFT)
    if before:
        with Ledger(twin, "key", {}) as ledger:
            ledger.commit({name: LEFT[name] for name in names[:before]})
    with Ledger(twin, "key", {}) as ledger:
        ledger.remember("chunk", 9)
        ledger.commit({name: LEFT[name] for name in names[before:]})
        for end in ("", "-wal"):
            shutil.copy(f"{twin}{end}", f"{path}{end}")
    if checkpointed:
        edited(path, put=twin.read_bytes()[:4096])
    twin.unlink()
    return path


def whole(path: Path) -> Path:
    with Ledger(path, "key", {}) as ledger:
        ledger.commit(VALUES)
    return path


def edited(path: Path, *, at: int = 0, put: bytes = b"", cut: int | None = None) -> Path:
    data = path.read_bytes()
    path.write_bytes((data[:at] + put + data[at + len(put) :])[:cut])
    return path


def foreign(path: Path, *, journal: str, application: int = 0) -> Path:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA journal_mode = {journal}")
        file.execute(f"PRAGMA application_id = {application}")
        file.execute("CREATE TABLE notes (text)")
        file.commit()
    return path


def text(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


NONE = "is not a ledger of mechheads"
DAMAGED = r"sweeps\.ledger is damaged \(.*\); restore a copy, or give another path"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: text(folder / "notes.txt", b"my notes\n" * 999), rf"notes\.txt {NONE} \(not a sqlite file\)"),
        (
            lambda folder: foreign(folder / "n.db", journal="wal"),
            rf"n\.db {NONE} \(a sqlite file without the mark of a ledger\)",
        ),
        (lambda folder: folder, r" is a folder; a ledger is a file, such as .*sweeps\.ledger"),
        (lambda folder: folder / "no" / "a.ledger", "there is no folder .*no for the ledger .*create it first"),
        (
            lambda folder: edited(whole(folder / "sweeps.ledger"), at=60, put=(store.VERSION + 1).to_bytes(4, "big")),
            r"sweeps\.ledger is from a newer mechheads and was not changed; give another path",
        ),
        (
            lambda folder: edited(whole(folder / "sweeps.ledger"), at=60, put=(store.VERSION - 1).to_bytes(4, "big")),
            r"sweeps\.ledger is from an older mechheads and was not changed; give another path",
        ),
        *[
            (lambda folder, cut=cut: edited(whole(folder / "sweeps.ledger"), cut=cut), DAMAGED)
            for cut in (4096, 6000, 8 * 4096, -4096)
        ],
        (lambda folder: edited(whole(folder / "sweeps.ledger"), at=4096, put=bytes(4096)), DAMAGED),
    ],
)
def test_a_file_that_is_no_ledger_stays_as_it_is(tmp_path: Path, make: Any, message: str) -> None:
    path = make(tmp_path)
    before = path.read_bytes() if path.is_file() else None
    for use in (lambda: Ledger(path, "key", {}), lambda: Ledger.check(path)):
        with pytest.raises(ValueError, match=message):
            use()
    if before is not None:
        with pytest.raises(ValueError, match=message):
            Ledger.list(path)
        assert path.read_bytes() == before


@pytest.mark.needs(sys.platform == "linux", "a limit on the size of files")
def test_a_ledger_that_met_a_full_disk_while_it_was_made_works_once_there_is_room(tmp_path: Path) -> None:
    """A file may not grow beyond so many bytes, as on a disk without room."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    outcomes = []
    for size in range(0, 200 * 1024, 5120):
        path = tmp_path / f"{size}.ledger"
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
        try:
            with Ledger(path, "a key", {}) as ledger:
                ledger.commit(LEFT)
            outcomes.append("made")
        except (ValueError, OSError, sqlite3.Error):
            outcomes.append("full")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with Ledger(path, "a key", {}) as ledger:
            assert same(ledger.commit(LEFT), LEFT)
    assert {"made", "full"} == set(outcomes)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_a_killed_process_left_is_all_there(tmp_path: Path, checkpointed: bool) -> None:
    path = killed(tmp_path / "k", checkpointed=checkpointed)
    assert [one["units"] for one in Ledger.list(path)] == [18]
    with Ledger(path, "key", {}) as ledger:
        assert same(ledger.finished(), LEFT)
        assert ledger.remember("chunk", 1) == 9


WRITER = """
import sys
import numpy as np
from mechheads.ledger.ledger import Ledger

path, own = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for i in range(20):
    with Ledger(path, own, {}) as alone, Ledger(path, "shared", {}) as shared:
        alone.commit({str(i): np.full(400, i + float(own))})
        shared.commit({f"{i}, {j}": np.full(400, float(i * j)) for j in range(3)})
        assert shared.remember("chunk", own) == shared.remember("chunk", None)
        assert len(alone.finished()) == i + 1
        assert Ledger.list(path)
"""


def test_two_processes_may_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    run_at_once(WRITER, [(path, own) for own in "12"])
    for own in "12":
        with Ledger(path, own, {}) as ledger:
            assert same(ledger.finished(), {str(i): np.full(400, i + float(own)) for i in range(20)})
    with Ledger(path, "shared", {}) as ledger:
        expected = {f"{i}, {j}": np.full(400, float(i * j)) for i in range(20) for j in range(3)}
        assert same(dict(sorted(ledger.finished().items())), dict(sorted(expected.items())))
    assert [one.name for one in tmp_path.iterdir()] == ["a.ledger"]
