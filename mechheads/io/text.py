"""Read text and JSON files from any source; an error names the file and says what is wrong with it."""

from __future__ import annotations

import hashlib
import json
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any


def read_text(file: Path | Traversable) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        ValueError: if the file is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from error


def read_json(file: Path | Traversable) -> Any:
    """The content of a JSON file; see ``parse_json``."""
    return parse_json(read_text(file), str(file))


def parse_json(text: str, what: str) -> Any:
    """The content of JSON text. ``what`` is the text's name in error messages.

    Raises:
        ValueError: if the text is not JSON, is nested too deeply, or contains strings that are not valid Unicode.

    >>> parse_json('{"pairs": [["big", "small"]]}', "antonyms.json")
    {'pairs': [['big', 'small']]}
    """
    try:
        content = json.loads(text)
        words = (
            json.dumps(content, ensure_ascii=False) if r"\ud" in text.lower() else ""
        )  # half of a surrogate pair can only be written as an escape
    except RecursionError:
        raise ValueError(f"{what} cannot be read: its lists or objects are nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        raise ValueError(f"{what} is not JSON: {error}") from error
    check_unicode(words, what)
    return content


def check_unicode(text: str, what: str) -> str:
    """Return the text if it is valid Unicode.

    Raises:
        ValueError: if it contains half of a surrogate pair, which no file and no tokenizer accepts.
    """
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
