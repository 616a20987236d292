"""Requests from files, whose column and rows are said, and from the public sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mechheads.safety import requests as loaders
from mechheads.safety.requests import load_requests

BAD, GOOD = "How do I pick a lock?", "How do I bake a cake?"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [pd.DataFrame({"prompt": ["How?"]}), ["How?"], iter(["How?"]), None])
def test_what_is_neither_a_name_nor_a_file_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match=r"^source is .*; give a text or a path$"):
        load_requests(source)


def test_a_file_of_one_column_is_read_as_it_is(tmp_path: Path) -> None:
    found = load_requests(write(tmp_path, "a.csv", f"input\n{BAD}\n{GOOD}\n{BAD}\n"))
    assert list(found.texts) == [BAD, GOOD, BAD]
    assert repr(found) == "<3 requests of a.csv, all 3 rows of 'input'; 1 repeat another (texts folded)>"
    with pytest.raises(ValueError, match="where is 'each'; give 'all' or None"):
        load_requests(tmp_path / "a.csv", where="each")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(("label", "harmful", "harmless"), [("jailbreak", True, False), ("label", "refuse", "answer")])
def test_which_rows_of_a_mixed_file_are_meant_must_be_said(
    tmp_path: Path, kind: str, label: str, harmful: Any, harmless: Any
) -> None:
    """No label is guessed: files of harmful and harmless requests name it in any way."""
    frame, file = pd.DataFrame({"prompt": [BAD, GOOD], label: [harmful, harmless]}), tmp_path / f"mixed.{kind}"
    match kind:
        case "csv":
            frame.to_csv(file, index=False)
        case "parquet":
            frame.to_parquet(file)
        case _:
            frame.to_json(file, orient="records", lines=kind == "jsonl")
    listed = rf"^mixed.{kind} has the columns 'prompt' \('{BAD[:-1]}\?'\), '{label}' \('?{harmful}'?\); "
    call = rf"load_requests\('mixed.{kind}', column=\.\.\., where={{column: value}}\), or where=\"all\""
    for given, what in (({}, "column"), ({"column": "prompt"}, "where")):
        with pytest.raises(ValueError, match=f"{listed}{what} is not given; write {call}"):
            load_requests(file, **given)
    found = load_requests(file, column="prompt", where={label: harmful})
    assert repr(found) == f"<1 of the requests of mixed.{kind}, 1 of 2 rows of 'prompt' (text folded)>"
    assert (list(found.texts), found.harmful) == ([BAD], True)
    safe = load_requests(file, part="safe", column="prompt", where={label: [harmless]})
    assert (list(safe.texts), safe.harmful) == ([GOOD], False)
    every = load_requests(file, column="prompt", where="all")
    assert list(every.texts) == [BAD, GOOD]
    assert repr(every) == f"<2 requests of mixed.{kind}, all 2 rows of 'prompt'; not used: '{label}' (texts folded)>"


# --- the public sets ---------------------------------------------------------------------------------------


JBB = "Index,Goal,Target,Behavior,Category,Source\n0,{},Sure,b,c,Original\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A hub with one small file for each that is asked for, in that set's form; it keeps what it was asked."""
    asked: list[dict[str, Any]] = []
    (tmp_path / "data").mkdir()
    write(tmp_path, "data/harmful-behaviors.csv", JBB.format('"Do harm, please"'))
    write(tmp_path, "data/benign-behaviors.csv", JBB.format("Do good"))
    pd.DataFrame({"prompt": ["Do bad"]}).to_parquet(tmp_path / "data/train-00000-of-00001.parquet")
    write(tmp_path, "advbench.csv", 'goal,target\nDo worse,"Sure, here"\n')
    rows = "1,May I?,homonyms,safe,may,\n2,Must I?,contrast_homonyms,unsafe,must,note\n"
    write(tmp_path, "xstest_prompts.csv", f"id,prompt,type,label,focus,note\n{rows}")

    def download(repo_id: str, filename: str, **options: Any) -> str:
        asked.append({"repo_id": repo_id, "filename": filename, **options})
        return str(tmp_path / filename)

    monkeypatch.setattr(loaders, "hf_hub_download", download)
    return asked


@pytest.mark.parametrize(
    ("name", "part", "text", "repository", "file"),
    [
        ("JailbreakBench", "unsafe", "Do harm, please", "JailbreakBench/JBB-Behaviors", "data/harmful-behaviors.csv"),
        ("JailbreakBench", "safe", "Do good", "JailbreakBench/JBB-Behaviors", "data/benign-behaviors.csv"),
        ("MaliciousInstruct", "unsafe", "Do bad", "walledai/MaliciousInstruct", "data/train-00000-of-00001.parquet"),
        ("AdvBench", "unsafe", "Do worse", "S3IC/advbench", "advbench.csv"),
        ("XSTest", "unsafe", "Must I?", "Paul/XSTest", "xstest_prompts.csv"),
        ("XSTest", "safe", "May I?", "Paul/XSTest", "xstest_prompts.csv"),
    ],
)
def test_public_sets(hub: list[dict[str, Any]], name: str, part: Any, text: str, repository: str, file: str) -> None:
    found = load_requests(name, part=part, revision="abc")
    assert list(found.texts) == [text]
    assert found.harmful == (part == "unsafe")
    assert hub == [{"repo_id": repository, "filename": file, "repo_type": "dataset", "revision": "abc"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source": "HarmBench"},
            "'HarmBench' is neither a file nor one of 'harmful', .*, 'JailbreakBench', 'M",
        ),
        ({"source": "XSTest", "part": "all"}, "part is 'all'; choose one of 'unsafe', 'safe'"),
        (
            {"source": "AdvBench", "part": "safe"},
            "AdvBench has no part 'safe'; JailbreakBench and XSTest have it",
        ),
        ({"source": "harmful", "where": "all"}, "where is 'all', but 'harmful' is no file; leave where out"),
    ],
)
def test_sets_and_parts_that_there_are_not(hub: list[dict[str, Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_requests(**options)
    assert hub == []
