"""Pairs of prompts from files, and from tables in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mechheads.files.columns import cell_text, columns_of, described, is_missing, table_rows, whole_number
from mechheads.files.rows import read_rows
from mechheads.messages.arguments import did_you_mean
from mechheads.prompts.chats import is_chat

_COLUMNS = ("clean", "corrupted", "answer", "wrong", "cluster")
"""The columns of a table of pairs; the last three are optional."""


def read_columns(path: Any) -> dict[str, list[Any]]:
    """The columns of a table of pairs, by the rules of ``PromptPairs.load``.

    Raises:
        ValueError: if it is no such table, or a cell is missing or no text.

    >>> read_columns({"clean": ["1 + 8 ="], "corrupted": ["1 + 7 ="], "answer": [9]})["answer"]
    ['9']
    """
    file, rows = _opened(path)
    needed = 'each needs "clean" and "corrupted", and may have "answer", "wrong" and "cluster"'
    if not rows:
        raise ValueError(f"{file} holds no pairs; {needed}")
    if wrong := [place for place, row in rows if not isinstance(row, Mapping)]:
        raise ValueError(f"{wrong[0]} is no pair; {needed}")
    given = {name for _, row in rows for name, value in row.items() if not _is_empty(value)}
    missing = [name for name in _COLUMNS if name not in given]
    meant = [(name, said) for name in given - set(_COLUMNS) if (said := did_you_mean(name, missing))]
    if meant or not {"clean", "corrupted"} <= given:
        name, said = min(meant, default=("", ""))
        has = repr(name) if name else ", ".join(map(repr, sorted(map(str, given)))) or "nothing"
        raise ValueError(f"{file} has {has}; {needed}.{said}")
    for name in given & set(_COLUMNS):
        if without := [place for place, row in rows if _is_empty(row.get(name))]:
            raise ValueError(f"{without[0]} has no {name!r}, but others have; give it, or leave out the row")
    return {name: [_cell(row, name, place) for place, row in rows] for name in _COLUMNS if name in given}


def _opened(path: Any) -> tuple[str, list[tuple[str, Any]]]:
    """What the table is called, and each of its rows with its place."""
    if isinstance(path, (str, Path)):
        file = Path(path).expanduser()
        return str(file), read_rows(file)
    if columns_of(path) is None:
        raise ValueError(f"path is {described(path)}; give a file, or a table: a DataFrame or a dict of columns")
    return "the table", [(f"the table, row {number}", row) for number, row in enumerate(table_rows(path, "path"))]


def _is_empty(cell: object) -> bool:
    return is_missing(cell) or (isinstance(cell, str) and not cell)


def _cell(row: Mapping[str, Any], name: str, place: str) -> Any:
    """A cell: a text, or beside it a prompt of ids or messages, or the token id of an answer to ids.

    Raises:
        ValueError: if it is something else.
    """
    value = _listed(row[name])
    sides = [_listed(row[side]) for side in ("clean", "corrupted")]
    if name in ("clean", "corrupted") and isinstance(value, list):
        return value
    of_ids = all(isinstance(side, list) and not is_chat(side) for side in sides)
    if name in ("answer", "wrong") and of_ids and (token := whole_number(value)) is not None:
        return token
    text = cell_text(value)
    if not isinstance(text, str):
        raise ValueError(
            f"{place}: {name!r} is {described(value)}; write it as text, as formats write such a value in different "
            "ways"
        )
    return text


def _listed(cell: Any) -> Any:
    """A list in a Parquet file is an array."""
    return cell.tolist() if hasattr(cell, "tolist") else cell
