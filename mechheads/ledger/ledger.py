"""The ledger: a sqlite file of finished units, and of how far others are, so that a killed run resumes; and merging."""

from __future__ import annotations

import builtins
import glob
import json
import math
import os
import sqlite3
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from mechheads.files.text import parse_json

APPLICATION_ID = 0x6D686C67
"""Marks the file as a ledger of mechheads ("mhlg")."""
VERSION = 2
MOVES_ON = "moves on"
"""The setting of sweeps whose units move on (``StoredProgress``): merging keeps what is furthest."""
PATIENCE = 60.0
"""Seconds to wait while another process writes to the file."""

_TABLES = """
CREATE TABLE sweeps (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, about TEXT NOT NULL, started TEXT NOT NULL,
    checksum INTEGER NOT NULL);
CREATE TABLE units (sweep INTEGER NOT NULL REFERENCES sweeps, name TEXT NOT NULL, dtype TEXT NOT NULL,
    shape TEXT NOT NULL, data BLOB NOT NULL, checksum INTEGER NOT NULL, UNIQUE (sweep, name));
CREATE TABLE settings (sweep INTEGER NOT NULL REFERENCES sweeps, name TEXT NOT NULL, value TEXT NOT NULL,
    checksum INTEGER NOT NULL, UNIQUE (sweep, name));
"""
_SWEEPS = """
SELECT key, about, started, (SELECT count(*) FROM units WHERE sweep = sweeps.id) FROM sweeps ORDER BY id
"""
_CHECKED = {"sweeps": "key, about, started", "units": "name, dtype, shape, data", "settings": "name, value"}
"""The columns of each table that a row's checksum covers."""
_DTYPE = "<f8"


class Ledger:
    """The finished units of one sweep, in a file that may hold many sweeps.

    Committed units survive the end of the process, however it ends. After a power failure the last commits may be
    missing, but a commit is never stored in part. Several processes may use one file at once, on a local disk. While
    they do, and after one was killed, the files ``-wal`` and ``-shm`` next to it are part of it.

    Args:
        path: the file; created if it does not exist.
        key: identifies this sweep among the others in the file: a fingerprint of everything that decides its results.
        about: a description of the sweep that JSON can hold; the first one given is kept.

    Raises:
        ValueError: if the file is not a ledger, is damaged, or is from a newer mechheads; it is then not changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from mechheads.ledger.ledger import Ledger
    >>> path = Path(tempfile.mkdtemp()) / "sweeps.ledger"
    >>> with Ledger(path, "a key", {"metric": "logit_diff"}) as ledger:
    ...     kept = ledger.commit({"L0H0": np.array([0.5, 1.0])})
    >>> with Ledger(path, "a key", {}) as ledger:
    ...     ledger.finished()
    {'L0H0': array([0.5, 1. ])}
    """

    def __init__(self, path: str | os.PathLike[str], key: str, about: Mapping[str, Any]) -> None:
        self.path = Path(path).resolve()
        row = (key, json.dumps(about), datetime.now(UTC).isoformat(timespec="seconds"))
        if os.path.lexists(self.path):
            _check(self.path)
        else:
            _create(self.path)
        for rest in self.path.parent.glob(glob.escape(f".{self.path.name}.") + 32 * "[0-9a-f]" + ".tmp*"):
            with suppress(OSError):
                rest.unlink()  # left by a process that was killed, or that created the ledger a little later
        with _explained(self.path):
            self._file = _connect(self.path, "rw")
            try:
                self._file.execute("PRAGMA journal_mode = wal")
                self._file.execute("PRAGMA synchronous = normal")
                with self._transaction():
                    self._file.execute(
                        "INSERT OR IGNORE INTO sweeps (key, about, started, checksum) VALUES (?, ?, ?, ?)",
                        (*row, _checksum(*row)),
                    )
                    ((self._sweep,),) = self._file.execute("SELECT id FROM sweeps WHERE key = ?", (key,))
            except BaseException:
                self._file.close()
                raise

    @staticmethod
    def check(path: str | os.PathLike[str]) -> None:
        """Check, before expensive work, that a ledger is here or can be created here; nothing is changed.

        Raises:
            ValueError: if there is no such folder, or the file is not a ledger or is damaged.
        """
        path = Path(path).resolve()
        if os.path.lexists(path):
            _check(path)
        else:
            _check_place(path)

    @staticmethod
    def list(path: str | os.PathLike[str]) -> builtins.list[dict[str, Any]]:
        """The sweeps of a file, oldest first: ``key``, ``about``, ``started`` and the number of finished ``units``.

        Raises:
            ValueError: if there is no such file, or it is not a ledger.
        """
        rows = _check(Path(path).resolve())
        return [{"key": k, "about": json.loads(a), "started": s, "units": n} for k, a, s, n in rows]

    @classmethod
    def read(cls, path: str | os.PathLike[str], key: str) -> Ledger:
        """A sweep of an existing file, to read.

        Raises:
            ValueError: if there is no such file or sweep in it, or it is not a ledger.
        """
        if not any(sweep["key"] == key for sweep in cls.list(path)):
            raise ValueError(f"the ledger {path} holds no sweep with the key {key!r}")
        return cls(path, key, {})

    @property
    def about(self) -> dict[str, Any]:
        """The description of the sweep."""
        ((about,),) = self._file.execute("SELECT about FROM sweeps WHERE id = ?", (self._sweep,))
        return json.loads(about)

    def settings(self) -> dict[str, Any]:
        """Every setting of this sweep; see ``remember``."""
        rows = self._file.execute("SELECT name, value FROM settings WHERE sweep = ?", (self._sweep,))
        return {name: json.loads(value) for name, value in rows}

    def finished(self) -> dict[str, np.ndarray]:
        """The units committed so far by this or any other process, each the same float64 array as committed."""
        rows = self._file.execute(
            "SELECT name, dtype, shape, data FROM units WHERE sweep = ? ORDER BY rowid", (self._sweep,)
        )
        return {name: _array(dtype, shape, data) for name, dtype, shape, data in rows}

    def commit(self, units: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Add finished units, all or none. Once this returns, they survive the end of the process.

        Returns:
            The units as they are stored. If another process has committed a unit before, its values count, so that
            all processes end with the same numbers; they may differ by rounding, because it cut other batches.

        Raises:
            ValueError: if one is not float64, or is already stored with another shape.
            OSError: if the file cannot be written, for example because the disk is full.
        """
        kept = dict(units)
        with self._transaction():
            for name, values in units.items():
                if not self._put(name, values, "IGNORE") and (there := self._unit(name)) is not None:
                    if there.shape != values.shape:
                        raise ValueError(f"unit {name!r} is already in {self.path} with the shape {list(there.shape)}")
                    kept[name] = there
        return kept

    def advance(self, name: str, values: Float[np.ndarray, " value"]) -> None:
        """Store how far a unit has come, in place of what is stored of it, unless that is as far or further.

        So two processes that do the same work never set each other back.

        Args:
            values: what the work goes on from; the first number says how far it is.

        Raises:
            ValueError, OSError: as ``commit`` does.
        """
        with self._transaction():
            there = self._file.execute(
                "SELECT substr(data, 1, 8) FROM units WHERE sweep = ? AND name = ?", (self._sweep, name)
            ).fetchone()
            if there is None or np.frombuffer(there[0], _DTYPE)[0] < values[0]:
                self._put(name, values, "REPLACE")

    def _put(self, name: str, values: np.ndarray, or_else: Literal["IGNORE", "REPLACE"]) -> bool:
        """Insert a unit. If it is there already, ignore the new values or replace the old; whether it was written."""
        if values.dtype != np.float64:
            raise ValueError(f"unit {name!r} is {values.dtype}; a ledger stores float64")
        row = (_DTYPE, json.dumps(values.shape), values.astype(_DTYPE, copy=False).tobytes())
        written = self._file.execute(
            f"INSERT OR {or_else} INTO units (sweep, name, dtype, shape, data, checksum) VALUES (?, ?, ?, ?, ?, ?)",
            (self._sweep, name, *row, _checksum(name, *row)),
        )
        return written.rowcount > 0

    def _unit(self, name: str) -> np.ndarray | None:
        found = self._file.execute(
            "SELECT dtype, shape, data FROM units WHERE sweep = ? AND name = ?", (self._sweep, name)
        ).fetchone()
        return None if found is None else _array(*found)

    def remember(self, name: str, value: Any) -> Any:
        """A setting of this sweep: the value given when it was first requested, in this process or an earlier one.

        Args:
            name: the name of the setting.
            value: the value to store if there is none yet; anything that JSON can hold.
        """
        with self._transaction():
            text = json.dumps(value)
            self._file.execute(
                "INSERT OR IGNORE INTO settings VALUES (?, ?, ?, ?)", (self._sweep, name, text, _checksum(name, text))
            )
            ((kept,),) = self._file.execute(
                "SELECT value FROM settings WHERE sweep = ? AND name = ?", (self._sweep, name)
            )
        return json.loads(kept)

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
        try:
            self._file.execute("BEGIN IMMEDIATE")
            yield
            self._file.execute("COMMIT")
        except BaseException as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise OSError(f"cannot write to the ledger {self.path}: {error}") from error
            raise


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many sweeps and units ``into`` holds now, and how many of the units are new."""

    into: Path
    sweeps: int
    units: int
    new: int


def merge(parts: Sequence[str | os.PathLike[str]], into: str | os.PathLike[str]) -> Merged:
    """Copy the units of several ledgers into one. The parts are not changed; merging again changes nothing.

    Args:
        parts: ledgers of the same sweeps, such as those of a sweep's parts (``Limits(part=(3, 16))``).
        into: the ledger that gets all units; created if it does not exist.

    Raises:
        ValueError: if a part is not a ledger or is damaged, the parts are of different sweeps or were cut into other
            batches, or a unit has other values in another part. Units of the parts before it stay in ``into``.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from mechheads.ledger.ledger import Ledger
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in (1, 2):
    ...     with Ledger(folder / f"part-{part}", "a key", {}) as ledger:
    ...         kept = ledger.commit({f"L{part}H0 0": np.array([0.5])})
    >>> mh.scale.merge([folder / "part-1", folder / "part-2"], folder / "all").units
    2
    """
    if isinstance(parts, (str, os.PathLike)) or not parts:
        raise ValueError(f'parts is {parts!r}; give a list of ledgers, such as ["part-1.ledger", "part-2.ledger"]')
    sweeps = {Path(part): Ledger.list(part) for part in parts}
    first, *others = sweeps
    keys = {sweep["key"] for sweep in sweeps[first]}
    for part in others:
        if {sweep["key"] for sweep in sweeps[part]} != keys:
            raise ValueError(
                f"{part} does not hold the same sweeps as {first}: something that decides the numbers differed, such "
                "as the model's weights, the kind of device, or the version of a library; mh.scale.Ledger.list shows "
                "what each holds. Run that part again with the same files and versions"
            )
    new = 0
    for part, held in sweeps.items():
        for sweep in held:
            new += _merge_sweep(part, Path(into), sweep["key"])
    found = [sweep for sweep in Ledger.list(into) if sweep["key"] in keys]
    return Merged(Path(into), len(found), sum(sweep["units"] for sweep in found), new)


def _merge_sweep(part: Path, into: Path, key: str) -> int:
    """Copy the units and settings of one sweep; returns how many units are new."""
    with closing(Ledger.read(part, key)) as source, closing(Ledger(into, key, source.about)) as target:
        before = set(target.finished())
        units = source.finished()
        for name, value in source.settings().items():
            if target.remember(name, value) != value:
                raise ValueError(
                    f"{part} was cut into other batches than the parts before it ({name}), so together they would not "
                    "be the whole: run it again into a new ledger, with the same number of parts, budget and workers"
                )
        if source.settings().get(MOVES_ON):
            for name, values in units.items():
                target.advance(name, values)
            return len(units.keys() - before)
        for name, values in target.commit(units).items():
            if values.tobytes() != units[name].tobytes():
                raise ValueError(f"unit {name!r} of {part} is already in {into} with other values")
    return len(units.keys() - before)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    file = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=PATIENCE, isolation_level=None)
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
    return ValueError(
        f"the ledger {path} is damaged ({why}) and was not changed; restore a copy, or give another path to start again"
    )


def _check_place(path: Path) -> None:
    """Check that a ledger can be created at a path.

    Raises:
        ValueError: if it cannot.
    """
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for the ledger {path}; create it first")
    rest = Path(f"{path}-wal")
    if rest.exists() and not path.exists():
        raise ValueError(
            f"there is no ledger {path}, but {rest} is left from one that was deleted; delete this file too"
        )


def _create(path: Path) -> None:
    """Create an empty ledger under a temporary name and move it to its path, unless another process was faster."""
    _check_place(path)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with _explained(path):
            with closing(_connect(unfinished, "rwc")) as file:
                # without a -wal file, whose contents could be lost on a full disk when the file is closed
                file.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                file.execute(f"PRAGMA user_version = {VERSION}")
                file.executescript(f"BEGIN; {_TABLES} COMMIT;")
                file.execute("PRAGMA journal_mode = wal")
            _inspect(unfinished, busy=False)
            try:
                os.link(unfinished, path)
            except OSError:  # another process created it, or the file system has no hard links
                if not path.exists():
                    os.replace(unfinished, path)
    except ValueError:
        if not path.exists():  # otherwise another process was faster and removed the temporary file
            raise
    finally:
        for rest in ("", "-journal", "-wal", "-shm"):
            Path(f"{unfinished}{rest}").unlink(missing_ok=True)


def _check(path: Path) -> list[tuple[str, str, str, int]]:
    """Check that a file is an undamaged ledger, without writing to it or creating files next to it.

    Returns:
        Its sweeps: key, about, started and number of units.

    Raises:
        ValueError: if it is not.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a ledger is a file, such as {path / 'sweeps.ledger'}")
    if not path.exists():
        raise ValueError(f"there is no ledger {path}; check the path")
    if not path.is_file():
        raise _foreign(path, "not a regular file")
    while True:
        before = _state(path)
        try:
            with _explained(path):
                return _inspect(path, busy=before[-1])
        except ValueError:
            if _state(path) == before:  # otherwise another process wrote to it in the meantime
                raise


def _state(path: Path) -> tuple[int, int, bool]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, Path(f"{path}-wal").exists()


def _inspect(path: Path, busy: bool) -> list[tuple[str, str, str, int]]:
    """Check the file itself, then its contents, including those in the ``-wal`` file if the ledger is ``busy``."""
    if not path.stat().st_size:
        raise _foreign(path, "an empty file")
    with closing(_connect(path, "ro&immutable=1")) as file:
        file.execute("PRAGMA writable_schema = on")  # open it even if a killed process left an update unfinished
        ((application,),) = file.execute("PRAGMA application_id")
        ((version,),) = file.execute("PRAGMA user_version")
        if application != APPLICATION_ID:
            raise _foreign(path, "a sqlite file without the mark of a ledger")
        if version > VERSION:
            raise ValueError(
                f"the ledger {path} is from a newer mechheads and was not changed; update yours, or give another path"
            )
        ((page,),) = file.execute("PRAGMA page_size")
        if path.stat().st_size % page:
            raise _damaged(path, "its size is wrong")
        found = _schema(file)
        if not {"sweeps", "units", "settings"} <= set(found):
            raise _foreign(path, "it lacks a ledger's tables")
        if version < VERSION:
            raise ValueError(f"the ledger {path} is from an older mechheads and was not changed; give another path")
        _check_schema(path, found)
        ((last,),) = file.execute("SELECT max(ifnull(CAST(rootpage AS INTEGER), 0)) FROM sqlite_master")
        if path.stat().st_size < page * last:
            raise _damaged(path, "its size is wrong")
    with closing(_connect(path, "ro" if busy else "ro&immutable=1")) as file:
        _check_schema(path, _schema(file))  # what is in the -wal file too
        ((found,),) = file.execute("PRAGMA integrity_check(1)")
        if found != "ok":
            raise _damaged(path, found.splitlines()[-1])
        for table, columns in _CHECKED.items():
            for *row, checksum in file.execute(f"SELECT {columns}, checksum FROM {table}"):
                if _checksum(*row) != checksum or (table == "units" and not _fits(*row[1:])):
                    raise _damaged(path, f"{row[0]!r} in {table} is not what was stored")
        return file.execute(_SWEEPS).fetchall()


def _schema(file: sqlite3.Connection) -> dict[str, tuple[str, str, str]]:
    """What a file consists of, by name: tables, indices, views and triggers, and how each was made."""
    rows = file.execute("SELECT name, type, tbl_name, ifnull(sql, '') FROM sqlite_master")
    return {name: (kind, of, " ".join(str(sql).split())) for name, kind, of, sql in rows}


def _check_schema(path: Path, found: dict[str, tuple[str, str, str]]) -> None:
    """Check that a file consists of what a ledger consists of, and nothing else, before anything in it is read.

    Raises:
        ValueError: if it does not: a view, a trigger or a column that is computed would run what a stranger wrote.
    """
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(_TABLES)
        wanted = _schema(made)
    if odd := [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]:
        kind = found.get(odd[0], wanted.get(odd[0], ("",)))[0]
        raise _foreign(path, f"its {kind} {odd[0]!r} is not one that mechheads makes")


def _fits(dtype: object, shape: object, data: object) -> bool:
    """Whether the numbers of a unit are as many as its shape says."""
    if dtype != _DTYPE or not isinstance(shape, str) or not isinstance(data, bytes):
        return False
    sizes = parse_json(shape, "a shape")
    whole = isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes)
    return whole and math.prod(sizes) * np.dtype(_DTYPE).itemsize == len(data)


def _checksum(*row: object) -> int:
    texts = repr([part for part in row if not isinstance(part, bytes)])
    return zlib.crc32(b"".join(part for part in row if isinstance(part, bytes)), zlib.crc32(texts.encode()))


def _array(dtype: str, shape: str, data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype).astype(np.float64).reshape(json.loads(shape))
