"""The ledger: a sqlite file of finished units, and of the progress of others, so that a killed run resumes."""

from __future__ import annotations

import builtins
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from mechheads.limits import current

APPLICATION_ID = 0x6D686C67
"""Marks the file as a ledger of mechheads ("mhlg")."""
VERSION = 4
WITNESS = "log-probabilities"
"""The setting with the model's log-probabilities when the sweep began; they differ a little between machines."""
_PATIENCE = 60.0
"""Seconds to wait while another process writes to the file."""

_TABLES = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE IF NOT EXISTS sweeps (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL,
    started TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS units (sweep INTEGER NOT NULL REFERENCES sweeps, name TEXT NOT NULL, shape TEXT NOT NULL,
    data BLOB NOT NULL, UNIQUE (sweep, name));
CREATE TABLE IF NOT EXISTS settings (sweep INTEGER NOT NULL REFERENCES sweeps, name TEXT NOT NULL, value TEXT NOT NULL,
    UNIQUE (sweep, name));
COMMIT;
"""
_SWEEPS = """
SELECT key, metadata, started, (SELECT count(*) FROM units WHERE sweep = sweeps.id) FROM sweeps ORDER BY id
"""
_DTYPE = "<f8"


class Ledger:
    """The finished units of one sweep, in a file that may hold many sweeps.

    Committed units survive the end of the process, however it ends. After a power failure the last commits may be
    missing, but a commit is never stored in part. Several processes may use one file at once, on a local disk. While
    they do, and after one was killed, the files ``-wal`` and ``-shm`` next to it are part of it.

    Args:
        path: the file; created if it does not exist.
        key: identifies this sweep among the others in the file.
        metadata: a description of the sweep that JSON can hold; the first one is stored.

    Raises:
        ValueError: if the file is not a ledger, is damaged, or is from another version of mechheads; it is then not
            changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "sweeps.ledger"
    >>> with mh.scale.Ledger(path, "a key", {"metric": "logit_diff"}) as ledger:
    ...     stored = ledger.commit({"L0H0": np.array([0.5, 1.0])})
    >>> with mh.scale.Ledger(path, "a key", {}) as ledger:
    ...     ledger.finished()
    {'L0H0': array([0.5, 1. ])}
    """

    def __init__(self, path: str | os.PathLike[str], key: str, metadata: Mapping[str, Any]) -> None:
        self.path = Path(path).resolve()
        self.check(self.path)
        row = (key, json.dumps(metadata), datetime.now(UTC).isoformat(timespec="seconds"))
        with _explained(self.path):
            self._file = _connect(self.path, "rwc")
            try:
                if not self.path.stat().st_size:
                    self._file.executescript(_TABLES)
                # only now the file -wal, so that the file itself says what it is
                with suppress(sqlite3.OperationalError):  # another process that opens it for the first time does this
                    self._file.execute("PRAGMA journal_mode = wal")
                self._file.execute("PRAGMA synchronous = normal")
                with self._transaction():
                    self._file.execute("INSERT OR IGNORE INTO sweeps (key, metadata, started) VALUES (?, ?, ?)", row)
                ((self._sweep, first),) = self._file.execute("SELECT id, metadata FROM sweeps WHERE key = ?", (key,))
            except BaseException:
                self._file.close()
                raise
        self.metadata: dict[str, Any] = json.loads(first)

    @staticmethod
    def check(path: str | os.PathLike[str]) -> None:
        """Check, before expensive work, that a ledger is here or can be created here; nothing is changed."""
        path = Path(path).resolve()
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder {path.parent} for the ledger {path}; create it first")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; a ledger is a file, such as {path / 'sweeps.ledger'}")
        if path.exists() and not path.is_file():
            raise _foreign(path, "not a regular file")
        if not path.exists() or not path.stat().st_size:  # a process was killed before it made the tables
            return
        # sqlite reads the header: opening the file otherwise would drop the locks that this process has on it
        with _explained(path), closing(_connect(path, "rw")) as file:
            ((application,), (version,)) = (
                *file.execute("PRAGMA application_id"),
                *file.execute("PRAGMA user_version"),
            )
            if application != APPLICATION_ID:
                raise _foreign(path, "a sqlite file without the mark of a ledger")
            if version != VERSION:
                age = "a newer" if version > VERSION else "an older"
                raise ValueError(f"the ledger {path} is from {age} mechheads and was not changed; give another path")
            ((report,),) = file.execute("PRAGMA quick_check(1)")
            if report != "ok":
                raise _damaged(path, report.splitlines()[-1])

    @staticmethod
    def list(path: str | os.PathLike[str]) -> builtins.list[dict[str, Any]]:
        """The sweeps of a file, oldest first: ``key``, ``metadata``, ``started`` and the number of ``units``."""
        path = Path(path).resolve()
        if not path.exists():
            raise ValueError(f"there is no ledger {path}; check the path")
        Ledger.check(path)
        with _explained(path), closing(_connect(path, "rw")) as file:
            return [
                {"key": k, "metadata": json.loads(a), "started": s, "units": n} for k, a, s, n in file.execute(_SWEEPS)
            ]

    def settings(self) -> dict[str, Any]:
        """Every setting of this sweep; see ``remember``."""
        rows = self._file.execute("SELECT name, value FROM settings WHERE sweep = ?", (self._sweep,))
        return {name: json.loads(value) for name, value in rows}

    def finished(self) -> dict[str, np.ndarray]:
        """The units committed so far by this or any other process, each the same float64 array as committed."""
        rows = self._file.execute("SELECT name, shape, data FROM units WHERE sweep = ? ORDER BY rowid", (self._sweep,))
        return {name: _array(shape, data) for name, shape, data in rows}

    def commit(self, units: Mapping[str, np.ndarray], *, moving: bool = False) -> dict[str, np.ndarray]:
        """Add finished units, all or none, and return them as they are stored; they survive the end of the process.

        If another process has committed a unit before, its values count, so that all processes end with the same
        numbers. ``moving`` units are states whose first number says how far they are; of these, the furthest stays.
        """
        committed = {}
        with self._transaction():
            for name, values in units.items():
                if values.dtype != np.float64:
                    raise ValueError(f"unit {name!r} is {values.dtype}; a ledger stores float64")
                row = (self._sweep, name, json.dumps(values.shape), values.astype(_DTYPE, copy=False).tobytes())
                self._file.execute("INSERT OR IGNORE INTO units VALUES (?, ?, ?, ?)", row)
                of_unit = "SELECT shape, data FROM units WHERE sweep = ? AND name = ?"
                committed[name] = _array(*self._file.execute(of_unit, row[:2]).fetchone())
                if committed[name].shape != values.shape:
                    shape = list(committed[name].shape)
                    raise ValueError(f"unit {name!r} is already in {self.path} with the shape {shape}")
                if moving and committed[name][0] < values[0]:
                    self._file.execute("REPLACE INTO units VALUES (?, ?, ?, ?)", row)
        return committed

    def remember(self, name: str, value: Any) -> Any:
        """A setting of this sweep, which JSON can hold: the first value that this or another process stored."""
        row = (self._sweep, name, json.dumps(value))
        with self._transaction():
            self._file.execute("INSERT OR IGNORE INTO settings VALUES (?, ?, ?)", row)
        return self.settings()[name]

    def close(self) -> None:
        """Move all units from the ``-wal`` file into the ledger, if no other process uses it, and close it."""
        with suppress(sqlite3.Error):
            self._file.execute("PRAGMA wal_checkpoint(passive)")
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A ``with`` block whose writes are all stored, or none of them."""
        try:
            with self._file:
                yield
        except sqlite3.OperationalError as error:
            raise OSError(f"cannot write to the ledger {self.path}: {error}") from error


def _connect(path: Path, mode: Literal["rw", "rwc"]) -> sqlite3.Connection:
    file = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=_PATIENCE, isolation_level="IMMEDIATE")
    file.execute("PRAGMA trusted_schema = off")
    return file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn errors of sqlite and of the system into one ValueError that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_NOTADB:
            raise _foreign(path, "not a sqlite file") from error
        if code == sqlite3.SQLITE_CORRUPT:
            raise _damaged(path, error) from error
        raise ValueError(f"the ledger {path} cannot be opened: {error}") from error


def _foreign(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not a ledger of mechheads ({why}) and was not changed; give another path")


def _damaged(path: Path, why: object) -> ValueError:
    return ValueError(f"the ledger {path} is damaged ({why}); restore a copy, or give another path to start again")


def _array(shape: str, data: bytes) -> np.ndarray:
    return np.frombuffer(data, _DTYPE).astype(np.float64).reshape(json.loads(shape))


State = TypeVar("State")
"""The state of an unfinished unit: a dataclass of tensors and whole numbers, which each step replaces."""
_EVERY = 5.0
"""Seconds between two writes, at least."""
_SHARE = 0.05
"""The largest share of the time that writing takes: the profile of a 70B model has 300 MB."""


def check_progress() -> None:
    """Check, before expensive work, that progress can be stored in the file that the settings name."""
    if (store := current().store) is not None:
        Ledger.check(store)


class StoredProgress:
    """The progress of some units, written every few seconds and at the end of a ``with`` block."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._stored = {} if ledger is None else ledger.finished()
        self._unwritten: dict[str, tuple[int, Any]] = {}
        self._next = time.monotonic() + _EVERY

    def state(self, name: str, begin: State) -> State:
        """The state from which a unit continues: the stored one, or ``begin``, which has the same shapes."""
        if name not in self._stored:
            return begin
        tensors = {name: torch.as_tensor(value) for name, value in vars(begin).items()}
        parts = torch.from_numpy(self._stored.pop(name)[1:]).split([tensor.numel() for tensor in tensors.values()])
        new: dict[str, Any] = {
            at: part.view(of.shape).to(of.dtype).to(of.device) if isinstance(vars(begin)[at], Tensor) else int(part)
            for (at, of), part in zip(tensors.items(), parts, strict=True)
        }
        return replace(begin, **new)  # type: ignore[type-var]

    def see(self, name: str, state: Any, done: int) -> None:
        """Note the state of a unit; of several, a ledger keeps the one that is furthest (``done``)."""
        self._unwritten[name] = done, state
        if time.monotonic() > self._next:
            self.write()

    def write(self) -> None:
        """Store every state that was noted since the last time."""
        start = time.monotonic()
        if self._ledger is not None:
            rows = {}
            for name, (done, state) in self._unwritten.items():  # float64 holds each number of a state exactly
                numbers = [torch.as_tensor(value).cpu().flatten().double() for value in (done, *vars(state).values())]
                rows[name] = torch.cat(numbers).numpy()
            self._ledger.commit(rows, moving=True)
        self._unwritten.clear()
        end = time.monotonic()
        self._next = end + max(_EVERY, (end - start) / _SHARE)

    def __enter__(self) -> StoredProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.write()
