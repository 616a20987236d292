"""A lock on a folder of results, so that two commands never write into one folder at the same time."""

from __future__ import annotations

import os
import platform
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".mechheads.lock"
"""The file that is locked. Who holds the lock stands in it; without a lock of the system, the file means nothing."""

_ours: dict[Path, tuple[int, int]] = {}
"""The folders that this process holds: by which thread, and how many blocks deep."""
_guard = threading.Lock()


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
    place = Path(folder).resolve()
    lock = _take(place, folder)
    try:
        yield
    finally:
        with _guard:
            owner, depth = _ours.pop(place)
            if depth > 1:
                _ours[place] = owner, depth - 1
            elif lock is not None:
                _let_go(lock)


def _take(place: Path, shown: str | Path) -> FileLock | None:
    """Lock a folder; None if this thread holds it already."""
    me = threading.get_ident()
    with _guard:
        owner, depth = _ours.get(place, (me, 0))
        if owner != me:
            raise ValueError(_busy(shown, "another thread of this process"))
        lock = None if depth else _locked(place, shown)
        _ours[place] = me, depth + 1
    return lock


def _locked(place: Path, shown: str | Path) -> FileLock:
    file = place / LOCK
    holder = _holder(file)
    lock = FileLock(file)
    try:
        with tempfile.TemporaryFile(dir=place):  # so that a folder that cannot be written to says so
            pass
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(_busy(shown, holder)) from None
    except OSError as error:
        why = error.strerror or error
        raise ValueError(f"{shown} cannot be written to ({why}); give another folder, or free this one") from error
    now = datetime.now(UTC).isoformat(" ", "seconds").removesuffix("+00:00")
    with suppress(OSError):
        file.write_text(f"process {os.getpid()} on {platform.node()}, since {now} UTC", "utf-8")
    return lock


def _holder(file: Path) -> str:
    """Who holds a lock, as it says itself."""
    with suppress(OSError, UnicodeDecodeError):
        if file.is_file() and (said := file.read_text("utf-8")[:200].strip()):
            return said
    return "another process"


def _busy(folder: str | Path, holder: str) -> str:
    return (
        f"{folder} is in use by {holder}: two commands cannot write into one folder at the same time; wait until that "
        "one has ended, or give another folder"
    )


def _let_go(lock: FileLock) -> None:
    """Remove the file of a lock, then give it up: a process that opened the file in between sees that it is gone."""
    with suppress(OSError):
        os.unlink(lock.lock_file)
    lock.release()
