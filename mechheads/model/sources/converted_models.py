"""Folders that are made once and kept for later processes, such as converted weights."""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs
from filelock import FileLock
from safetensors import SafetensorError

from mechheads.files.checksums import file_sha256
from mechheads.model.sources.source import ModelSourceError


def cache_directory() -> Path:
    """The folder in which mechheads keeps its files: ``MECHHEADS_CACHE``, or else the user's cache directory."""
    chosen = os.environ.get("MECHHEADS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("mechheads", appauthor=False)


def kept_folder(name: str, make: Callable[[Path], Path], *, what: str, task: str, size: Callable[[], int]) -> Path:
    """A folder of the cache, which is made at the first call. It is made completely or not at all.

    Processes that start at the same time wait for one another.

    Args:
        name: the name of the folder.
        make: receives an empty folder to work in, and returns the folder to keep.
        what: what is kept, for messages.
        task: a description of the work, printed to stderr before it begins.
        size: gives the largest number of bytes that the folder may take; asked only if it is made.

    Raises:
        ModelSourceError: if the cache cannot be written, or the disk is full.
    """
    cache = cache_directory()
    folder = cache / name
    if folder.is_dir():
        return folder
    most = size()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not folder.is_dir():
                if (free := shutil.disk_usage(cache).free) < most:
                    raise OSError(f"{free / 1e9:.1f} GB are free")
                print(f"mechheads: {task} (once, to {folder}, up to {most / 1e9:.1f} GB)", file=sys.stderr)
                _make(folder, make)
    except (OSError, SafetensorError) as error:
        raise ModelSourceError(
            f"{what} cannot be stored in {cache}: {error}; free {most / 1e9:.1f} GB there, or set the environment "
            "variable MECHHEADS_CACHE to another folder"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], Path]) -> None:
    workshop = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(workshop, ignore_errors=True)  # left by a process that was killed
    workshop.mkdir()
    try:
        os.replace(make(workshop), folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def file_mark(file: Path) -> str:
    """A text that changes whenever a file does: inode, size, and when its content and its entry last changed."""
    about = file.stat()
    return "-".join(map(str, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)))


def file_hash(file: Path) -> str:
    """The SHA-256 of a file. It is stored in the cache under ``file_mark``, so an unchanged file is read only once."""
    note = cache_directory() / "hashes" / file_mark(file)
    if note.is_file() and re.fullmatch(r"[0-9a-f]{64}", known := note.read_text("ascii", errors="replace")):
        return known
    found = file_sha256(file)
    unfinished = note.with_name(f"{note.name}.{uuid.uuid4().hex}.tmp")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(found, "ascii")
        if file_mark(file) == note.name:
            os.replace(unfinished, note)
    except OSError:
        pass  # without the stored hash, the next call is only slower
    finally:
        unfinished.unlink(missing_ok=True)
    return found
