"""Read the rows of a table or list, in any of the forms that public files have; each row knows where it stands."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mechheads.files.text import parse_json, read_text

Row = tuple[str, Any]
"""An entry of a file, after its place for error messages."""

_OF_QUESTIONS = re.compile(
    r"(?:system|user|input|task|question|source)?_?(?:instructions?|inputs?|system|contexts?|contextstring|ctx|passages?|"
    r"paragraphs?|articles?|documents?|stor(?:y|ies)|premises?|hypothes[ie]s|sentences?|questions?|query|queries|prompts?|"
    r"goal|requests?|dialogues?|dialog|history|conversations?|messages|choices?|options?|endings?|facts?|support|evidence|"
    r"body|hint|background|text)(?:_?[a-e\d])?|[a-e]"
)


def carries_question(column: str) -> bool:
    """Whether a column by this name says what is asked, or a part of it, in public files.

    >>> [carries_question(name) for name in ("instruction", "System_Prompt", "option2", "A", "category", "id")]
    [True, True, True, True, False, False]
    """
    return _OF_QUESTIONS.fullmatch(re.sub(r"[^a-z0-9]+", "_", str(column).lower())) is not None


def holds_something(cell: Any) -> bool:
    """Whether a cell of a file holds a text, a list or an object that is not empty.

    >>> [holds_something(cell) for cell in ("a", " ", None, float("nan"), ["a"], [])]
    [True, False, False, False, True, False]
    """
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    return bool(cell.strip()) if isinstance(cell, str) else isinstance(cell, (list, dict)) and bool(cell)


def read_rows(file: Path) -> list[Row]:
    """The entries of a CSV or TSV file with a header, a Parquet file, or JSON.

    JSON is a list, one value on each line, or an object whose key ``examples`` holds a list, as in BIG-bench; it is
    recognised by its content.

    Raises:
        ValueError: if there is no such file, or it cannot be read; the message names the file and the line.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = file.write_text('{"input": "hot"}\\n\\n{"input": "big"}\\n')
    >>> [(place[-6:], entry) for place, entry in read_rows(file)]
    [('line 1', {'input': 'hot'}), ('line 3', {'input': 'big'})]
    """
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise ValueError(f"there is no file {str(file)!r}")
    match file.suffix.lower():
        case ".csv" | ".tsv":
            return _csv(file)
        case ".parquet":
            import pandas as pd

            try:
                rows = pd.read_parquet(file).to_dict("records")
            except ValueError as error:
                raise ValueError(f"{file} is not a Parquet file: {error}") from error
            return [(f"{file}, row {number}", row) for number, row in enumerate(rows, 1)]
    entries = list(_values(read_text(file), file))
    if len(entries) > 1 or not entries:
        return entries
    content = entries[0][1]
    if isinstance(content, dict) and isinstance(content.get("examples"), list):
        content = content["examples"]
    return [(f"{file}, item {i}", entry) for i, entry in enumerate(content)] if isinstance(content, list) else entries


def _values(text: str, file: Path) -> Iterator[Row]:
    """The JSON values of a text: one over several lines, or one on each line."""
    lines = text.split("\n")
    first, *more = text.strip().split("\n")
    ends = {"[": "]", "{": "}"}.get(first[:1])
    if more and ends and not first.rstrip().endswith(ends):
        yield str(file), parse_json(text, str(file))
        return
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{file}, line {number}"
            yield place, parse_json(line, place)


def _csv(file: Path) -> list[Row]:
    lines = io.StringIO(read_text(file), newline="")
    table = csv.DictReader(lines, strict=True, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
    rows: list[Row] = []
    try:
        columns = list(table.fieldnames or ())
        rows.extend((f"{file}, line {table.line_num}", row) for row in table)
    except csv.Error as error:
        raise ValueError(f"{file}, line {table.reader.line_num}: {error}") from error
    if twice := [name for name in columns if name and columns.count(name) > 1]:
        raise ValueError(f"{file}, line 1: more than one column is called {twice[0]!r}; rename one")
    for place, row in rows:
        if None in row:
            raise ValueError(f"{place}: more cells than the header; a text that contains a comma needs quotes")
    return rows
