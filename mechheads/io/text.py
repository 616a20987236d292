"""Read text, JSON and values of users; an error names the file or argument and says what is wrong."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

_SHOWN = 60
_PIECES, _PIECE = 64, 2**16
"""The number of pieces that are read as a sample of a file, and the bytes of each."""


def read_text(file: Path | Traversable) -> str:
    """The text of a UTF-8 file, with or without a byte order mark."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from error


def read_json(file: Path | Traversable) -> Any:
    """The content of a JSON file; see ``parse_json``."""
    return parse_json(read_text(file), str(file))


def parse_json(text: str, what: str) -> Any:
    """The content of JSON text. ``what`` is the text's name in error messages."""
    try:
        content = json.loads(text)
        # half of a surrogate pair can only be written as an escape
        words = json.dumps(content, ensure_ascii=False) if r"\ud" in text.lower() else ""
    except RecursionError:
        raise ValueError(f"{what} cannot be read: its lists or objects are nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        raise ValueError(f"{what} is not JSON: {error}") from error
    check_unicode(words, what)
    return content


def check_unicode(text: str, what: str) -> str:
    """Return the text if it is valid Unicode."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[max(0, error.start - 20) : error.end + 20]
        raise ValueError(f"{what} contains {shown!r}, which is not valid Unicode: half of a surrogate pair") from error
    return text


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_sample(path: Path) -> tuple[int, str]:
    """The size of a file and a hash of pieces from all of its parts, which take milliseconds to read."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as content:
        for i in range(_PIECES):
            content.seek(max(0, size - _PIECE) * i // (_PIECES - 1))
            digest.update(content.read(_PIECE))
    return size, digest.hexdigest()


def entries(values: Any, name: str, what: str) -> Sequence[Any]:
    """A user's list of something, such as "prompts"; the error about anything else shows how to make a list."""
    if isinstance(values, str):
        raise ValueError(f"{name} must be a list of {what}, got one string; write [{values[:40]!r}]")
    if not isinstance(values, Sequence) or isinstance(values, (bytes, bytearray, memoryview)):
        raise ValueError(
            f"{name} is {described(values)}; give a list of {what}, as list(iterator), array.tolist() and "
            "table[column].tolist() make one"
        )
    return values


def described(thing: Any) -> str:
    """An object in words for a message: a short value itself, or its type, with the keys of a dict."""
    kind = type(thing).__name__
    if isinstance(thing, Mapping):
        keys = list(thing)
        return f"a {kind} with the keys {', '.join(map(shown, keys[:8]))}{', ...' * (len(keys) > 8)}"
    try:
        shape = tuple(getattr(thing, "shape", ()))
    except RuntimeError:  # torch's nested tensors have none
        shape = ()
    if shape:
        return f"a {kind} with the shape {shape}"
    text = shown(thing)
    return f"a {kind}" if text.startswith("<") else text if text == repr(thing) else f"a {kind}, {text}"


def shown(thing: Any) -> str:
    """The ``repr`` of an object in one line, without its middle if it is long."""
    text = " ".join(repr(thing).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 4 :]}"


def whole_number(value: Any) -> int | None:
    """A whole number of Python, NumPy or torch as an int; None for anything else, also for a boolean."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or getattr(value, "ndim", 0):
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # a float tensor has the method too, and a tensor may have no data
        return None


def cell_text(value: object) -> Any:
    """A cell of a column of texts: a whole number becomes its digits, as in CSV; anything else stays as it is."""
    number = None if isinstance(value, str) else whole_number(value)
    return value if number is None else str(number)


def labels(values: Any, name: str = "cluster") -> list[str]:
    """Labels of clusters as text, each a text or a whole number; 1 and "1" are the same, as CSV has no other."""
    texts = [cell_text(label) for label in entries(values, name, "labels")]
    for index, label in enumerate(texts):
        if not isinstance(label, str) or not label:
            raise ValueError(
                f"{name}[{index}] is {described(label)}, which is no cluster; give each prompt a label, a text or a "
                "whole number, or leave out the prompts that have none"
            )
    return [str(label) for label in texts]
