"""Text and JSON from files that anybody may have written: what cannot be used is an error that names the file."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any


def read_text(file: Path | Traversable) -> str:
    """The text of a UTF-8 file, with or without a byte order mark.

    Raises:
        ValueError: if it is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error})") from error


def read_json(file: Path | Traversable) -> Any:
    """The content of a JSON file; see ``parse_json``."""
    return parse_json(read_text(file), str(file))


def parse_json(text: str, what: str) -> Any:
    """The content of JSON text; ``what`` names it in messages.

    Raises:
        ValueError: if it is not JSON, is nested too deeply, or holds text that is not valid Unicode.

    >>> parse_json('{"pairs": [["big", "small"]]}', "antonyms.json")
    {'pairs': [['big', 'small']]}
    """
    try:
        content = json.loads(text)
        words = (
            json.dumps(content, ensure_ascii=False) if r"\ud" in text.lower() else ""
        )  # half a pair can only be escaped
    except RecursionError:
        raise ValueError(f"{what} holds lists or objects that are nested too deeply to be read") from None
    except ValueError as error:  # JSONDecodeError, or a number of thousands of digits
        raise ValueError(f"{what} is not JSON: {error}") from error
    check_unicode(words, what)
    return content


def check_unicode(text: str, what: str) -> str:
    """The text itself.

    Raises:
        ValueError: if it holds half of a surrogate pair, which no file and no tokenizer takes.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[max(0, error.start - 20) : error.end + 20]
        raise ValueError(f"{what} holds {shown!r}, which is not valid Unicode: half of a surrogate pair") from error
    return text
