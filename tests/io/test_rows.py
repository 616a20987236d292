"""The rows of files: each kind gives the same, and what is no table is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from mechheads.io.rows import Table, rows

ROWS = [{"prompt": 'Say "no", twice.', "n": 1}, {"prompt": "Two\nlines.", "n": 2}, {"prompt": "  padded ", "n": 3}]


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def table(folder: Path, text: str = "word,label,n\nhot,a,1\ncold,b,\nwarm,a,2\n") -> Table:
    return Table.of(write(folder, "words.csv", text))


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_kind_of_file_has_the_same_rows(tmp_path: Path, kind: str) -> None:
    frame, file = pd.DataFrame(ROWS), tmp_path / f"three.{kind}"
    match kind:
        case "csv" | "tsv":
            frame.to_csv(file, index=False, sep="\t" if kind == "tsv" else ",")
        case "json" | "jsonl":
            frame.to_json(file, orient="records", lines=kind == "jsonl")
        case _:
            frame.to_parquet(file)
    found = rows(file)
    assert [{**row, "n": int(row["n"])} for row in found] == ROWS
    assert Table.of(file).texts("n") == ["1", "2", "3"]


@settings(max_examples=50)
@given(cells=st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=5))
def test_any_text_comes_back_from_csv_and_json(tmp_path_factory: pytest.TempPathFactory, cells: list[str]) -> None:
    folder, wanted = tmp_path_factory.mktemp("rows"), [{"text": cell, "n": "1"} for cell in cells]
    pd.DataFrame(wanted).to_csv(folder / "a.csv", index=False)
    write(folder, "a.json", json.dumps(wanted, indent=1))
    assert rows(folder / "a.csv") == rows(folder / "a.json") == wanted


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.CSV", "\ufeffword,n\r\nhot,1\r\n\r\ncold,\r\n", [{"word": "hot", "n": "1"}, {"word": "cold", "n": ""}]),
        ("a.csv", "word,n\nhot\n", [{"word": "hot", "n": None}]),
        ("a.tsv", 'word\tn\nHe said "no"\t1\n', [{"word": 'He said "no"', "n": "1"}]),
        ("a.jsonl", '{"word": "one\u2028two"}\n\n{"n": 1}\r\n', [{"word": "one\u2028two"}, {"n": 1}]),
        ("a.jsonl", '{"word": "hot"}', [{"word": "hot"}]),
        ("a.json", '[{"ids": [1, 2]}]', [{"ids": [1, 2]}]),
    ],
)
def test_shapes_that_files_come_in(tmp_path: Path, name: str, text: str, found: list[dict[str, Any]]) -> None:
    assert rows(write(tmp_path, name, text)) == found


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "word\n", "a.csv has no rows"),
        ("a.csv", "word,word\nx,y\n", r"a.csv, line 1: more than one column is called 'word'; rename one"),
        (
            "a.csv",
            "word\nok\nHow, why\n",
            r"a.csv, row 2: more cells than the header; a text with a comma needs quotes",
        ),
        ("a.csv", 'word\nok\n"open\n', r"a.csv, line 3: a cell that begins with a quote must end with one"),
        ("a.json", "[\n", "a.json is not JSON: .* line 2"),
        ("a.jsonl", '{"word": "x"}\n\n{"word"\n', "a.jsonl, line 3 is not JSON"),
        ("a.json", '["hot", "cold"]', r"row 1 is 'hot'; each must be an object .* json.load\(open\('a.json'\)\)"),
        ("a.json", '{"word": {"0": "hot"}}', r"holds a dict with the keys 'word'; .*orient=\"records\""),
        ("a.json", "[" * 99_999, "nested too deeply"),
        ("a.json", '[{"word": "\\ud800"}]', "not valid Unicode"),
        ("a.parquet", "PAR", "a.parquet is not a Parquet file: "),
        ("a.txt", "x\n", "is read by the end of its name, which must be one of .csv, .tsv, .json, .jsonl, .parquet"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rows(write(tmp_path, name, text))


# --- columns and rows that are taken ------------------------------------------------------------------------


def test_columns_are_said_and_the_others_listed_with_their_first_values(tmp_path: Path) -> None:
    words = table(tmp_path)
    assert words.pick("call()", source="word", target="label") == {"source": "word", "target": "label"}
    listed = r"^words.csv has the columns 'word' \('hot'\), 'label' \('a'\), 'n' \('1'\); "
    for source, what in ((None, "is not given"), ("Word", "is 'Word', which is none of them")):
        with pytest.raises(ValueError, match=rf"{listed}source {what}; write call\(\)$"):
            words.pick("call()", only=True, source=source)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"label": "a"}, ["hot", "warm"]),
        ({"n": 2}, ["warm"]),
        ({"n": ["", "1"], "label": "b"}, ["cold"]),
        ({}, ["hot", "cold", "warm"]),
    ],
)
def test_rows_are_chosen_by_values(tmp_path: Path, where: dict[str, Any], words: list[str]) -> None:
    assert table(tmp_path).where(where).texts("word") == words


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"lable": "a"}, r"has the columns 'word' .*; where has 'lable', which is none of them"),
        ({"label": "c"}, r"no row of words.csv has 'c' as its 'label'; it has 'a' \(2 rows\), 'b' \(1 rows\)"),
        ({"label": "b", "n": "1"}, r"no row of words.csv has all the values of where="),
    ],
)
def test_values_that_are_not_there_are_refused(tmp_path: Path, where: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        table(tmp_path).where(where)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"word": "hot"}, {"word": ""}, {"n": 1}]', "row 2 has '' in column 'word', and so have 1 more; it must be"),
        ('[{"word": 1.5}]', "row 1 has 1.5 in column 'word'; it must be a text"),
        ('[{"word": ["hot"]}]', r"row 1 has \['hot'\] in column 'word'"),
    ],
)
def test_a_cell_that_is_no_text_is_named_by_its_row(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^a.json, {message}"):
        Table.of(write(tmp_path, "a.json", text)).texts("word")
