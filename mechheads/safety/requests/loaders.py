"""Requests from files and from the public data sets on the hub."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
from huggingface_hub import errors as hub_errors, hf_hub_download

from mechheads.files.text import parse_json, read_text
from mechheads.messages.arguments import check_known
from mechheads.messages.suggest import did_you_mean
from mechheads.messages.warn import warn
from mechheads.safety.requests.requests import FoldedTexts, folded, load_requests

Part = Literal["unsafe", "safe"]

_OWN = ("harmful", "harmless")
"""The requests of the package."""
_COLUMNS = ("prompt", "goal", "input", "text", "instruction", "question", "query", "request")
"""Names of columns that hold requests, in lower case."""


@dataclass(frozen=True)
class _PublicSet:
    """A public data set: its repository, the file of each part, and the column that separates parts in one file."""

    repository: str
    files: Mapping[str, str]
    label: str | None = None

    def where(self, part: str) -> dict[str, str]:
        return {} if self.label is None else {self.label: part}


_SETS = {
    "JailbreakBench": _PublicSet(
        "JailbreakBench/JBB-Behaviors",
        {"unsafe": "data/harmful-behaviors.csv", "safe": "data/benign-behaviors.csv"},
    ),
    "MaliciousInstruct": _PublicSet("walledai/MaliciousInstruct", {"unsafe": "data/train-00000-of-00001.parquet"}),
    "AdvBench": _PublicSet("S3IC/advbench", {"unsafe": "advbench.csv"}),
    "XSTest": _PublicSet("Paul/XSTest", {"unsafe": "xstest_prompts.csv", "safe": "xstest_prompts.csv"}, label="label"),
}


def read_requests(
    path: str | Path, column: str | None = None, *, where: Mapping[str, Any] | None = None
) -> FoldedTexts:
    """Requests from a file.

    Args:
        path: a CSV file with a header, a JSONL file, a JSON file with one list, or a Parquet file, recognised by its
            suffix. Entries of JSON are objects or plain texts.
        column: the column, or key, that holds the texts. By default, the only one called prompt, goal, input, text,
            instruction, question, query or request, ignoring case.
        where: use only the rows with these values, such as ``{"label": "unsafe"}``.

    Returns:
        The texts as they are in the file, folded in a notebook. Repeated texts are kept, with a warning.

    Raises:
        ValueError: if the file cannot be read, the column is missing or ambiguous, no row is left, or a row has
            no text. Rows are counted from 1, without the header and blank lines.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from mechheads.safety import read_requests
    >>> file = Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = file.write_text("id,prompt,label\\n1,How do I pick a lock?,unsafe\\n2,How do I pick a seat?,safe\\n")
    >>> read_requests(file)
    <2 requests of mine.csv (texts folded)>
    >>> list(read_requests(file, "prompt", where={"label": "safe"}))
    ['How do I pick a seat?']
    """
    file = Path(path).expanduser()
    columns, rows = _table(file)
    if not rows:
        raise ValueError(f"{file} holds no requests; it needs at least one")
    where = where or {}
    if columns:
        column = _only_column(columns, file) if column is None else column
        for name in (column, *where):
            if columns.count(name) != 1:
                fault = "no column" if name not in columns else "more than one column"
                raise ValueError(f"{file} has {fault} {name!r}; its columns are {', '.join(map(repr, columns))}")
    elif column is not None or where:
        raise ValueError(f"{file} holds texts without columns; leave out column and where")
    texts: dict[int, Any] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            texts[number] = None if columns else row
        elif all(row.get(name) == value for name, value in where.items()):
            texts[number] = row.get(column)
    _check_texts(texts, file, column)
    return folded(texts.values(), f"requests of {file.name}")


def open_requests(name_or_path: str | Path) -> Sequence[str]:
    """Requests by name, or from a file, also one of a public data set as its authors publish it.

    Args:
        name_or_path: ``"harmful"`` or ``"harmless"`` for the requests of the package, a name of ``public_requests``
            for its unsafe part, or a file. A file is read as in ``read_requests``. A ``.txt`` file has one request on
            each line, as MaliciousInstruct has. A file with a column ``label`` that holds only "safe" and "unsafe", as
            XSTest has, gives its unsafe requests.

    Raises:
        ValueError: if there is no such name or file, or the file holds no requests.

    >>> from mechheads.safety import open_requests
    >>> len(open_requests("harmful"))
    60
    """
    name, file = str(name_or_path), Path(name_or_path).expanduser()
    if name in _OWN:
        return [request.text for request in load_requests(name)]
    if name in _SETS:
        return public_requests(name)
    if not os.path.isfile(file):
        known = (*_OWN, *_SETS)
        raise ValueError(
            f"requests: {name!r} is neither a file nor one of {', '.join(map(repr, known))}.{did_you_mean(name, known)}"
        )
    if file.suffix.lower() == ".txt":
        lines = [line.strip() for line in read_text(file).split("\n") if line.strip()]
        if not lines:
            raise ValueError(f"{file} holds no requests; it needs at least one")
        _check_texts(dict(enumerate(lines, start=1)), file, None)
        return folded(lines, f"requests of {file.name}")
    columns, rows = _table(file)
    labels = {row.get("label") for row in rows} if "label" in columns else set()
    return read_requests(file, where={"label": "unsafe"} if labels == {"safe", "unsafe"} else None)


def public_requests(name: str, part: Part = "unsafe", *, revision: str | None = None) -> Sequence[str]:
    """A public set of requests, from the hub or from its local cache.

    None of these sets comes with mechheads: each has its own licence and authors.

    ==================  ==============================  =============  ========================================
    name                data set on the hub             licence        what it is
    ==================  ==============================  =============  ========================================
    JailbreakBench      JailbreakBench/JBB-Behaviors    MIT            100 misuse behaviours and 100 benign ones
                                                                       on the same topics (arXiv 2404.01318)
    MaliciousInstruct   walledai/MaliciousInstruct      CC BY-SA 4.0   100 instructions with ten malicious intents
                                                                       (arXiv 2310.06987)
    AdvBench            S3IC/advbench                   MIT            520 harmful behaviours, a copy of the
                                                                       authors' file (arXiv 2307.15043)
    XSTest              Paul/XSTest                     CC BY 4.0      200 unsafe prompts and 250 safe ones that
                                                                       look like them (arXiv 2308.01263)
    ==================  ==============================  =============  ========================================

    Args:
        name: a name in the table.
        part: ``"unsafe"``; or ``"safe"``, which JailbreakBench and XSTest have.
        revision: a branch, tag or commit of the data set; give a commit to make results repeatable.

    Returns:
        The texts; unsafe ones are folded in a notebook.

    Raises:
        ValueError: if there is no such set or part, or if it cannot be downloaded. In that case the message names the
            file to download yourself, and shows how to read it with ``read_requests``.
    """
    check_known("name", name, _SETS)
    if part not in get_args(Part):
        raise ValueError(f"part is {part!r}; choose 'unsafe' or 'safe'")
    public = _SETS[name]
    if part not in public.files:
        having = " and ".join(other for other, one in _SETS.items() if part in one.files)
        raise ValueError(f"{name} has no part {part!r}; {having} have this part")
    try:
        file = hf_hub_download(public.repository, public.files[part], repo_type="dataset", revision=revision)
    except Exception as error:
        where = f", where={public.where(part)}" if public.where(part) else ""
        raise ValueError(
            f"{name} cannot be loaded: the data set {public.repository!r} {_fault(error, revision)}. You can also "
            f"download its file {public.files[part]} elsewhere and read it with read_requests(path{where})"
        ) from error
    texts = read_requests(file, where=public.where(part))
    return folded(texts, f"{part} requests of {name}") if part == "unsafe" else list(texts)


def _fault(error: Exception, revision: str | None) -> str:
    """Why the file could not be downloaded. The order matters: some of these errors are subclasses of others."""
    match error:
        case hub_errors.GatedRepoError():
            return 'is gated: accept its terms on the hub, run "hf auth login" and try again'
        case hub_errors.RevisionNotFoundError():
            return f"has no revision {revision!r}; check its branches and tags on the hub"
        case hub_errors.RepositoryNotFoundError():
            return "is no longer on the hub, or you may not read it"
        case hub_errors.LocalEntryNotFoundError() | ConnectionError():
            return "is not in the hub's local cache, and the hub cannot be reached"
        case hub_errors.EntryNotFoundError():
            return "no longer has the file that is read here"
    return f"cannot be downloaded from the hub: {error}"


def _table(file: Path) -> tuple[list[str], list[Any]]:
    """The columns of a file (none if its entries are plain texts), and its rows."""
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise ValueError(f"path {str(file)!r} does not exist; give a file of requests")
    kind = file.suffix.lower()
    try:
        if kind == ".csv":
            return _csv_table(file)
        if kind == ".parquet":
            frame = pd.read_parquet(file)
            return list(map(str, frame.columns)), frame.to_dict("records")
        if kind == ".jsonl":
            rows = _json_lines(file)
        elif kind == ".json":
            rows = parse_json(read_text(file), "the file")
        else:
            raise ValueError("its name must end in .csv, .jsonl, .json or .parquet")
        if not isinstance(rows, list):
            raise ValueError("it must hold one list")
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as requests: {error}") from error
    return list(dict.fromkeys(name for row in rows if isinstance(row, dict) for name in row)), rows


def _csv_table(file: Path) -> tuple[list[str], list[Any]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        table = csv.DictReader(lines, strict=True)
        try:
            columns, rows = list(table.fieldnames or ()), list(table)
        except csv.Error as error:
            raise ValueError(f"line {table.reader.line_num}: {error}") from error
    if longer := [number for number, row in enumerate(rows, start=1) if None in row]:
        raise ValueError(f"{_rows(longer)} more cells than the header; a text that contains a comma needs quotes")
    return columns, rows


def _json_lines(file: Path) -> list[Any]:
    lines = enumerate(read_text(file).split("\n"), start=1)
    return [parse_json(line, f"line {number}") for number, line in lines if line.strip()]


def _only_column(columns: list[str], file: Path) -> str:
    likely = [name for name in columns if name.lower() in _COLUMNS]
    if len(likely) != 1:
        names = ", ".join(map(repr, columns))
        raise ValueError(f"{file}: it is not clear which column holds the requests; give one of {names} as column")
    return likely[0]


def _check_texts(texts: Mapping[int, Any], file: Path, column: str | None) -> None:
    if not texts:
        raise ValueError(f"{file} has no row that matches where; check the values of its columns")
    place = "" if column is None else f" in column {column!r}"
    if empty := [number for number, text in texts.items() if not isinstance(text, str) or not text.strip()]:
        raise ValueError(f"{file}: {_rows(empty)} no text{place}; write one or remove the row")
    first: dict[str, int] = {}
    if again := [number for number, text in texts.items() if first.setdefault(text, number) != number]:
        warn(f"{file}: {_rows(again)} a text{place} that an earlier row also has; all are kept")


def _rows(numbers: Iterable[int]) -> str:
    """Row numbers as text, at most ten, with a verb.

    >>> _rows([3]), _rows([3, 5])
    ('row 3 has', 'rows 3, 5 have')
    """
    few = list(numbers)
    more = f" and {len(few) - 10} more" if len(few) > 10 else ""
    return f"row{'s' * (len(few) > 1)} {', '.join(map(str, few[:10]))}{more} {'have' if len(few) > 1 else 'has'}"
