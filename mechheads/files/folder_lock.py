"""A lock on a folder of results, so that two commands never write into one folder at the same time."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".mechheads.lock"
"""The file that is locked. Who holds the lock stands in it; without a lock of the system, the file means nothing."""


@contextmanager
def folder_locked(folder: str | Path) -> Iterator[None]:
    """Hold a folder during a block, for this thread alone; blocks may be nested.

    The lock is one of the operating system: it ends with the process, however that ends.

    Raises:
        ValueError: if another process or thread holds the folder, or it may not be written to.

    >>> import tempfile
    >>> from mechheads.files.folder_lock import folder_locked
    >>> with folder_locked(tempfile.mkdtemp()):
    ...     pass
    """
    file = Path(folder).resolve() / LOCK
    lock = FileLock(file, is_singleton=True)  # one object for each file, which counts the blocks of each thread
    if lock.is_locked:
        lock.acquire()
    else:
        _lock(lock, file, folder)
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            with suppress(OSError):  # a process that opened the file before it is unlocked sees that it is gone
                file.unlink()
        lock.release()


def _lock(lock: FileLock, file: Path, shown: str | Path) -> None:
    here = f"process {os.getpid()} on {platform.node()}"
    holder = _holder(file)
    try:
        with tempfile.TemporaryFile(dir=file.parent):  # so that a folder that cannot be written to says so
            pass
        lock.acquire(blocking=False)
    except Timeout:
        holder = "another thread of this process" if holder.startswith(f"{here}, ") else holder
        raise ValueError(
            f"{shown} is in use by {holder}: two commands cannot write into one folder at the same time; wait until "
            "that one has ended, or give another folder"
        ) from None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{shown} cannot be written to ({why}); give another folder, or free this one") from error
    now = datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    with suppress(OSError):
        file.write_text(f"{here}, since {now} UTC", "utf-8")


def _holder(file: Path) -> str:
    """Who holds a lock, as it says itself."""
    with suppress(OSError, UnicodeDecodeError):
        if file.is_file() and (said := file.read_text("utf-8")[:200].strip()):
            return said
    return "another process"
