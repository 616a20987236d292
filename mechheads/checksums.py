"""A checksum after the end of a file, so that a flipped bit is an error and never another number."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

_MARK = b"\nmechheads sha256 "
_LENGTH = len(_MARK) + 64
_PIECE = 2**20


def append(path: Path) -> None:
    """Put the checksum of a file after its end."""
    with path.open("r+b") as file:
        file.write(_MARK + _digest(file, path.stat().st_size).encode())


def has_appended(path: Path) -> bool:
    """Whether a file ends in a checksum, which then is right.

    Raises:
        ValueError: if the checksum is another than the file's.
    """
    with path.open("rb") as file:
        body = path.stat().st_size - _LENGTH
        if body < 0:
            return False
        file.seek(body)
        end = file.read()
        if not end.startswith(_MARK):
            return False
        file.seek(0)
        if _digest(file, body).encode() != end.removeprefix(_MARK):
            raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not fit")
    return True


def _digest(file: BinaryIO, size: int) -> str:
    """The SHA-256 of the next so many bytes."""
    digest = hashlib.sha256()
    while size and (piece := file.read(min(size, _PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
