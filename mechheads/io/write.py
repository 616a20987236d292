"""Write a file completely or not at all, and lock a folder: how results, tables and pages reach the disk."""

from __future__ import annotations

import codecs
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    import pandas as pd

LOCK = ".mechheads.lock"
"""The file that is locked in a folder of results; without a lock of the system, the file means nothing."""
_UNFINISHED = ".tmp"
_KINDS = {
    b"\x89HDF": "a netCDF file",
    b"\x89PNG": "a PNG picture",
    b"%PDF": "a PDF",
    b"<": "an HTML or SVG file",
    b"{": "a JSON file",
}
"""The first bytes of a file, which tell its kind."""


def write_file(path: Path, content: bytes | memoryview | str) -> Path:
    """Write bytes, or text as UTF-8, completely or not at all; a file with the same content stays as it is."""
    content = content.encode() if isinstance(content, str) else content
    for mark in _KINDS:
        if bytes(content[:8]).startswith(mark):
            check_kind(path, mark)
    if path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content:
        return path
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path in the same folder to write to, which replaces the file, or the target of a link, after the block."""
    path = path.resolve() if path.is_symlink() else path
    check_place(path)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_UNFINISHED}")
    try:
        unfinished.touch(exist_ok=False)
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        old = "; the file that was there has not changed" if path.exists() else ""
        raise OSError(error.errno, f"cannot save to {path}: {error.strerror or error}{old}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files that killed processes left in a folder, which the caller has locked."""
    for rest in folder.glob(f".*.{32 * '[0-9a-f]'}{_UNFINISHED}"):
        rest.unlink(missing_ok=True)


@contextmanager
def folder_locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder for this thread by a lock of the operating system; blocks may be nested."""
    file = Path(folder).resolve() / LOCK
    lock = FileLock(file, is_singleton=True)  # one object for each file, which counts the blocks of each thread
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"{folder} is in use by another process or thread: two commands cannot write into one folder at the same "
            "time; wait until that one has ended, or give another folder"
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{folder} cannot be written to ({why}); give another folder, or free this one") from error
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):  # a process that opened the file before it is unlocked sees that it is gone
                file.unlink()
        lock.release()


def check_kind(path: Path, mark: bytes) -> None:
    """Check that a file, if there is one, begins with this mark or is empty."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        old = file.read(512).removeprefix(codecs.BOM_UTF8).lstrip()
    if path.stat().st_size and not old.startswith(mark):
        raise ValueError(
            f"cannot save to {path}: the file that is there is not {_KINDS[mark]}, so it is not replaced; give "
            "another path, or delete it first"
        )


def check_place(path: Path) -> None:
    """Check that a file can be written to a path: before work, so that its result is not lost."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save to {path}: there is no folder {path.parent}; create it first")
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot save to {path}: this is {'a folder' if path.is_dir() else 'no file'}; give a file")


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV."""
    write_file(path, table.to_csv(index=False))
