"""Checksums of files. At the end of a file, one makes a flipped bit an error instead of another number."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechheads.files.text import read_json

_MARK = b"\nmechheads sha256 "
_LENGTH = len(_MARK) + 64


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(content: bytes) -> bytes:
    """The content of a file with its checksum at the end."""
    return content + _MARK + hashlib.sha256(content).hexdigest().encode()


def sealed_json(content: Mapping[str, Any]) -> str:
    """A content as JSON text with its checksum.

    >>> from mechheads.files.checksums import sealed_json
    >>> print(sealed_json({"seed": 0}))
    {
     "seed": 0,
     "checksum": "de7d7744ccd7"
    }
    """
    return json.dumps({**content, "checksum": _of_json(content)}, indent=1, ensure_ascii=False)


def read_sealed_json(path: Path) -> Any:
    """The content of a file of ``sealed_json`` without its checksum. A file that has none is taken as it is.

    Raises:
        ValueError: if the file is not JSON, or the checksum does not match.
    """
    content = read_json(path)
    if isinstance(content, dict) and "checksum" in content and content.pop("checksum") != _of_json(content):
        raise ValueError(
            f"{path} is damaged, or was changed after it was written: its checksum does not match. Write it again, or "
            "take its checksum out if you changed the file yourself"
        )
    return content


def _of_json(content: Mapping[str, Any]) -> str:
    """A checksum of what reading the content as JSON gives."""
    plain = json.loads(json.dumps(content))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def has_appended(path: Path) -> bool:
    """Whether a file ends in a checksum; if it does, the checksum has been verified.

    Raises:
        ValueError: if the checksum does not match the file.
    """
    whole = path.read_bytes()
    if not whole[-_LENGTH:].startswith(_MARK):
        return False
    if sealed(whole[:-_LENGTH]) != whole:
        raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
    return True
