"""Checksums of files. At the end of a file, one makes a flipped bit an error instead of another number."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

_MARK = b"\nmechheads sha256 "
_LENGTH = len(_MARK) + 64
_PIECE = 2**20


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(content: bytes) -> bytes:
    """The content of a file with its checksum at the end."""
    return content + _MARK + hashlib.sha256(content).hexdigest().encode()


def has_appended(path: Path) -> bool:
    """Whether a file ends in a checksum; if it does, the checksum has been verified.

    Raises:
        ValueError: if the checksum does not match the file.
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
            raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
    return True


def _digest(file: BinaryIO, size: int) -> str:
    """The SHA-256 of the next ``size`` bytes."""
    digest = hashlib.sha256()
    while size and (piece := file.read(min(size, _PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()
