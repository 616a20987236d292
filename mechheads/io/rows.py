"""The rows of a table in a file, and the columns that are read from them, which users name: none is guessed."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechheads.io.text import cell_text, described, parse_json, read_text, shown, whole_number

KINDS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""How the names of files with rows end."""
Where = Mapping[str, Any]
_LISTED = 5


def rows(file: str | Path) -> list[dict[str, Any]]:
    """The rows of a CSV or TSV file with a header, a JSON list of objects, JSON lines or a Parquet file.

    Args:
        file: its name says what it is: it ends in .csv, .tsv, .json, .jsonl or .parquet. Cells of CSV and TSV are
            texts, in quotes if they contain a comma (a tab), a line break or a quote, which is then written twice.

    Returns:
        One dict for each row, with its cells by the names of their columns, as Python objects.

    Raises:
        ValueError: if there is no such file, or it is not such a table; the message says in which row.

    >>> import tempfile
    >>> from mechheads.io import rows
    >>> file = Path(tempfile.mkdtemp(), "words.csv")
    >>> _ = file.write_text('word,meaning\\nhot,"not cold, warm"\\n')
    >>> rows(file)
    [{'word': 'hot', 'meaning': 'not cold, warm'}]
    """
    if not isinstance(file, (str, Path)):
        raise ValueError(f"file is {described(file)}; give a path")
    file = Path(file).expanduser()
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise ValueError(f"there is no file {str(file)!r}")
    match file.suffix.lower():
        case ".csv" | ".tsv":
            records = _separated(read_text(file), file)
        case ".json" | ".jsonl":
            records = _of_json(read_text(file), file)
        case ".parquet":
            import pandas as pd

            try:
                table = pd.read_parquet(file, dtype_backend="pyarrow").to_dict("records")
            except ValueError as error:
                raise ValueError(f"{file} is not a Parquet file: {error}") from error
            records = [{str(name): None if cell is pd.NA else cell for name, cell in row.items()} for row in table]
        case _:
            raise ValueError(f"{file} is read by the end of its name, which must be one of {', '.join(KINDS)}")
    if not records:
        raise ValueError(f"{file} has no rows")
    return records


def columns_called(file: str | Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """Arguments for columns with the arguments' own names, the optional ones if the file has them: for commands."""
    there = Table.of(file).first if os.path.isfile(Path(file).expanduser()) else ()
    return {name: name for name in (*needed, *(name for name in optional if name in there))}


def _separated(text: str, file: Path) -> list[dict[str, Any]]:
    tab = file.suffix.lower() == ".tsv"
    table = csv.DictReader(io.StringIO(text, newline=""), strict=True, delimiter="\t" if tab else ",")
    try:
        records = list(table)
    except csv.Error as error:
        raise ValueError(
            f"{file}, line {table.reader.line_num}: a cell that begins with a quote must end with one, and have every "
            f'quote within it twice, as in "say ""no""" ({error})'
        ) from error
    names = list(table.fieldnames or ())
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{file}, line 1: more than one column is called {twice[0]!r}; rename one")
    for number, row in enumerate(records, 1):
        if None in row:
            what = "a tab" if tab else "a comma"
            raise ValueError(f"{file}, row {number}: more cells than the header; a text with {what} needs quotes")
    return records


def _of_json(text: str, file: Path) -> list[dict[str, Any]]:
    if file.suffix.lower() == ".json":
        records = parse_json(text, str(file))
    else:
        lines = enumerate(text.split("\n"), 1)
        records = [parse_json(line, f"{file}, line {number}") for number, line in lines if line.strip()]
    if not isinstance(records, list):
        how = 'a list of objects, as [{"prompt": ...}, ...] and table.to_json(file, orient="records") are'
        raise ValueError(f"{file} holds {described(records)}; it must be {how}")
    for number, row in enumerate(records, 1):
        if not isinstance(row, dict):
            raise ValueError(
                f"{file}, row {number} is {described(row)}; each must be an object with names for its parts, such as "
                f'{{"prompt": ...}}; give a list of something else as a list: json.load(open({file.name!r}))'
            )
    return records


@dataclass(frozen=True)
class Table:
    """The rows of a file that are used: those ``at`` these indices, chosen ``by`` the values of some columns."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    at: Sequence[int]
    by: tuple[str, ...] = ()

    @classmethod
    def of(cls, file: str | Path) -> Table:
        """The table of a file; see ``rows``."""
        records = rows(file)
        return cls(Path(file).name, records, range(len(records)))

    @cached_property
    def first(self) -> dict[str, Any]:
        """The columns, each with its first value."""
        return {name: cell for row in reversed(self.rows) for name, cell in row.items()}

    def cells(self, column: str) -> list[Any]:
        """The cells of a column."""
        return [self.rows[at].get(column) for at in self.at]

    def pick(self, call: str, *, only: bool = False, **arguments: str | None) -> dict[str, str]:
        """The columns that arguments name; with ``only``, None stands for the only column. Errors show ``call``."""
        names = list(self.first)
        if only and len(names) == 1:
            arguments = {argument: name or names[0] for argument, name in arguments.items()}
        for argument, name in arguments.items():
            if name is None or name not in names:
                what = "is not given" if name is None else f"is {name!r}, which is none of them"
                raise ValueError(f"{self.name} has {self.listed()}; {argument} {what}; write {call}")
        return {argument: str(name) for argument, name in arguments.items()}

    def listed(self) -> str:
        """The columns, each with its first value, in words."""
        columns = [f"{name!r} ({shown(cell)})" for name, cell in self.first.items()]
        return f"the column{'s' * (len(columns) != 1)} {', '.join(columns)}"

    def where(self, where: Where) -> Table:
        """The rows with these values of columns, compared as they are written: 1 is "1", a missing value ""."""
        selected = self.at
        for name, values in where.items():
            if name not in self.first:
                raise ValueError(f"{self.name} has {self.listed()}; where has {name!r}, which is none of them")
            wanted = {_written(value) for value in (values if isinstance(values, (list, tuple, set)) else [values])}
            there = Counter(map(_written, self.cells(name)))
            if none := sorted(wanted - there.keys()):
                most = ", ".join(f"{value!r} ({n} rows)" for value, n in there.most_common(_LISTED))
                more = f" and {len(there) - _LISTED} others" if len(there) > _LISTED else ""
                raise ValueError(f"no row of {self.name} has {none[0]!r} as its {name!r}; it has {most}{more}")
            selected = [at for at in selected if _written(self.rows[at].get(name)) in wanted]
        if not selected:
            raise ValueError(f"no row of {self.name} has all the values of where={dict(where)!r}")
        return replace(self, at=selected, by=tuple(where))

    def texts(self, column: str) -> list[str]:
        """The cells of a column, each a text; a whole number is its digits."""
        cells = list(map(cell_text, self.cells(column)))
        if wrong := [at for at, text in enumerate(cells) if not isinstance(text, str) or not text.strip()]:
            row, cell = self.at[wrong[0]] + 1, shown(cells[wrong[0]])
            more = f", and so have {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ValueError(f"{self.name}, row {row} has {cell} in column {column!r}{more}; it must be a text")
        return cells

    def texts_of(self, call: str, **arguments: str | None) -> tuple[dict[str, list[str]], str]:
        """The texts of the columns that arguments name, and a sentence on how many rows and which columns they are."""
        columns = self.pick(call, only=False, **arguments)
        texts = {name: self.texts(column) for name, column in columns.items()}
        return texts, f"{self.name}, {self.summary(list(columns.values()))}"

    def prompts(self, column: str) -> list[Any]:
        """The cells of a column of prompts: texts, or lists, which are chats or token ids."""
        cells = self.cells(column)
        return cells if all(isinstance(cell, list) and cell for cell in cells) else self.texts(column)

    def ids(self, column: str) -> list[int] | None:
        """The cells of a column of token ids; None if one is no whole number."""
        cells = list(map(whole_number, self.cells(column)))
        return None if None in cells else [cell for cell in cells if cell is not None]

    def summary(self, columns: Sequence[str]) -> str:
        """How many rows of which columns were read, and which columns were not used, not even to choose rows."""
        unused = [name for name in self.first if name not in (*columns, *self.by)]
        n, total = len(self.at), len(self.rows)
        which = f"{n} of {total} rows" if n < total else "its one row" if total == 1 else f"all {total} rows"
        used = f"{which} of {', '.join(map(repr, columns))}"
        return f"{used}; not used: {', '.join(map(repr, unused))}" if unused else used


def _written(cell: object) -> str:
    return "" if cell is None else str(cell)
