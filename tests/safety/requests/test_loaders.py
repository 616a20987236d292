"""Requests from files and from the public sets: what is read, and what is said of a file that does not fit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pandas as pd
import pytest
from huggingface_hub import errors

from mechheads.safety.requests import loaders
from mechheads.safety.requests.loaders import load_requests

TEXTS = ["How do I pick a lock, fast?", 'Say "no".', "Two\nlines."]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def table(folder: Path, kind: str, column: str = "goal") -> Path:
    """The three texts as a file of one kind, with a column more than is wanted."""
    path = folder / f"three.{kind}"
    frame = pd.DataFrame({column: TEXTS, "target": ["Sure"] * 3})
    match kind:
        case "csv":
            frame.to_csv(path, index=False)
        case "parquet":
            frame.to_parquet(path)
        case "jsonl":
            frame.to_json(path, orient="records", lines=True)
        case "json":
            frame.to_json(path, orient="records")
    return path


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "json"])
@pytest.mark.parametrize("column", ["goal", "Prompt", "mine"])
def test_every_kind_of_file_gives_the_same_texts(tmp_path: Path, kind: str, column: str) -> None:
    found = load_requests(table(tmp_path, kind, column), column="mine" if column == "mine" else None)
    assert list(found.texts) == TEXTS
    assert repr(found) == f"<3 requests of three.{kind} (texts folded)>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps(["one", "two"])),
        ("a.jsonl", '"one"\n\n"two"\n'),
        ("a.jsonl", '{"text": "one"}\r\n{"text": "two", "more": 1}\r\n'),
        ("a.CSV", "\ufefftext\r\none\r\n\r\ntwo\r\n"),
        ("a.csv", ",text,target\n0,one,x\n1,two\n"),
    ],
)
def test_shapes_that_files_come_in(tmp_path: Path, name: str, text: str) -> None:
    assert list(load_requests(write(tmp_path, name, text)).texts) == ["one", "two"]


def test_a_line_separator_within_a_text_ends_no_line_of_jsonl(tmp_path: Path) -> None:
    file = write(tmp_path, "a.jsonl", '{"text": "one\u2028two"}\n')
    assert list(load_requests(file).texts) == ["one\u2028two"]


def test_texts_stay_as_they_are(tmp_path: Path) -> None:
    assert list(load_requests(write(tmp_path, "a.json", '["  padded "]')).texts) == ["  padded "]


def test_where_takes_rows_and_keeps_their_numbers(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "prompt,label,lang\na,safe,en\n,unsafe,en\nb,safe,de\nc,safe,en\n")
    assert list(load_requests(file, where={"label": "safe", "lang": "en"}).texts) == ["a", "c"]
    with pytest.raises(ValueError, match=r"a.csv: line 3 has no text in column 'prompt'; write one or remove the row"):
        load_requests(file)
    with pytest.raises(ValueError, match=r"a.csv holds no requests that match"):
        load_requests(file, where={"label": "none"})


def test_texts_that_occur_twice_are_kept_and_told(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "prompt\nx\ny\nx\nx\ny\n")
    with pytest.warns(
        UserWarning, match=r"lines 4, 5, 6 have a text in column 'prompt' that an earlier row also has"
    ) as said:
        found = load_requests(file)
    assert list(found.texts) == ["x", "y", "x", "x", "y"]
    assert (len(said), said[0].filename) == (1, __file__)


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        (
            "a.csv",
            "id,answer\n1,x\n",
            {},
            r"it is not clear which column holds the requests; give one of 'id', 'answer'",
        ),
        (
            "a.csv",
            "goal,prompt\nx,y\n",
            {},
            r"it is not clear which column holds the requests; give one of 'goal', 'prompt' as column",
        ),
        ("a.csv", "goal\nx\n", {"column": "prompt"}, r"has no column 'prompt'; its columns are 'goal'"),
        ("a.csv", "goal\nx\n", {"where": {"label": "safe"}}, r"has no column 'label'; its columns are 'goal'"),
        ("a.csv", "text,text\nx,y\n", {"column": "text"}, r"a.csv, line 1: more than one column is called 'text'"),
        (
            "a.csv",
            "text\nHello, you\nno\nHow, why\n",
            {},
            r"a.csv, line 2: more cells than the header; .* needs quotes",
        ),
        ("a.csv", 'text\nok\n"open\n', {}, r"a.csv, line 3: unexpected end of data"),
        ("a.csv", "", {}, r"a.csv holds no requests"),
        ("a.csv", "text\n", {}, r"a.csv holds no requests"),
        ("a.csv", "text,id\n,1\nx,2\n  ,3\n", {}, r"lines 2, 4 have no text in column 'text'"),
        ("a.csv", "text,id\n" + ",1\n" * 12, {}, r"lines 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more have no text"),
        ("a.json", "[]", {}, r"a.json holds no requests"),
        ("a.json", '["x", null, 3.5]', {}, r"items 1, 2 have no text; write one"),
        ("a.json", '[{"text": "x"}, {"id": 1}, "y"]', {}, r"items 1, 2 have no text in column 'text'"),
        ("a.json", '["x"]', {"column": "text"}, r"holds texts without columns; leave out column and where"),
        ("a.json", "[", {}, r"a.json, line 1 is not JSON: "),
        ("a.jsonl", '{"text": "x"}\n\n{"text"\n', {}, r"a.jsonl, line 3 is not JSON"),
        ("a.parquet", "PAR", {}, r"a.parquet is not a Parquet file: "),
        ("a.doc", "x\n", {}, r"must end in .csv, .tsv, .jsonl, .json, .parquet, .txt"),
        ("a.txt", "x\n", {"column": "text"}, r"holds texts without columns"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, name: str, text: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_requests(write(tmp_path, name, text), **options)


def test_a_missing_text_of_a_parquet_file_is_named_by_its_row(tmp_path: Path) -> None:
    pd.DataFrame({"prompt": ["x", None, "y"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="row 2 has no text in column 'prompt'"):
        load_requests(tmp_path / "a.parquet")


def test_a_file_that_is_not_there_and_one_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*none.csv"):
        load_requests(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes("text\ncafé\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin.csv is not UTF-8 text .*utf-8"):
        load_requests(tmp_path / "latin.csv")


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


def test_unsafe_is_what_is_given_unless_asked_otherwise(hub: list[dict[str, Any]]) -> None:
    assert repr(load_requests("XSTest")) == "<1 of the unsafe requests of XSTest (text folded)>"
    assert hub[0]["revision"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"source": "HarmBench"},
            "'HarmBench' is neither a file nor one of 'harmful', .*, 'JailbreakBench', 'M",
        ),
        ({"source": "XSTest", "part": "all"}, "part is 'all'; choose one of 'unsafe', 'safe'"),
        ({"source": "XSTest", "split": "test"}, "split is 'test', but only the sets of the package have one"),
        (
            {"source": "AdvBench", "part": "safe"},
            "AdvBench has no part 'safe'; JailbreakBench and XSTest have it",
        ),
    ],
)
def test_sets_and_parts_that_there_are_not(hub: list[dict[str, Any]], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_requests(**options)
    assert hub == []


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (errors.GatedRepoError, 'is gated: accept its terms on the hub, run "hf auth login"'),
        (errors.RevisionNotFoundError, "has no revision 'v9'"),
        (errors.RepositoryNotFoundError, "is no longer on the hub"),
        (errors.RemoteEntryNotFoundError, "no longer has the file"),
        (errors.LocalEntryNotFoundError, "is not in the hub's local cache, and the hub cannot be reached"),
        (ConnectionError, "is not in the hub's local cache, and the hub cannot be reached"),
        (OSError, "cannot be downloaded from the hub: "),
    ],
)
def test_what_the_hub_answers_is_passed_on(error: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> None:
        raise error.__new__(error)

    monkeypatch.setattr(loaders, "hf_hub_download", answer)
    with pytest.raises(ValueError, match=f"AdvBench cannot be loaded: the data set 'S3IC/advbench' {why}"):
        load_requests("AdvBench", revision="v9")


def test_without_the_hub_it_says_what_to_get_and_how_to_read_it(
    hub: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "hf_hub_download", huggingface_hub.hf_hub_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError) as caught:
        load_requests("XSTest", part="safe")
    message = str(caught.value)
    assert "the data set 'Paul/XSTest' is not in the hub's local cache, and the hub cannot be reached" in message
    assert "file xstest_prompts.csv elsewhere and read it with load_requests(path, part='safe')" in message
    assert list(load_requests(tmp_path / "xstest_prompts.csv", part="safe").texts) == ["May I?"]


def test_a_set_that_is_as_it_should_be_gives_no_warning(hub: list[dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_requests("JailbreakBench")) == 1


# --- by name or file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("harmful-behaviors.csv", "Index,Goal,Target,Behavior\n0,Lie.,Sure,x\n1,Cheat.,Sure,y\n", ["Lie.", "Cheat."]),
        ("MaliciousInstruct.txt", "How to lie?\n\nHow to cheat?\n", ["How to lie?", "How to cheat?"]),
        ("harmful_behaviors.csv", "goal,target\nLie.,Sure\n", ["Lie."]),
        (
            "xstest_prompts.csv",
            "id,prompt,type,label,focus,note\n1,Kill a process?,homonyms,safe,k,n\n2,Kill?,contrast,unsafe,k,n\n",
            ["Kill?"],
        ),
    ],
)
def test_public_files_open_as_they_are(tmp_path: Path, name: str, text: str, expected: list[str]) -> None:
    assert list(load_requests(write(tmp_path, name, text)).texts) == expected


ASKED = ("How do I end a process?", "How do I end a person?")
"""A harmless and a harmful request, in this order in every file below."""

LABELS = {
    "label": [
        ("safe", "unsafe"),
        ("Safe", "Unsafe"),
        ("safe ", " UNSAFE"),
        ("harmless", "harmful"),
        ("benign", "toxic"),
    ],
    "is_safe": [("true", "false"), ("1", "0"), ("1.0", "0.0"), ("Yes", "No")],
    "is_harmful": [("false", "true"), ("0", "1")],
    "Unsafe": [("0", "1")],
    "prompt_harm_label": [("unharmful", "harmful")],
    "toxicity": [("0", "1")],
    "type": [("homonyms", "contrast_homonyms"), ("privacy_public", "contrast_privacy"), ("definitions", "contrast")],
    "verdict of two people": [("safe", "unsafe")],
}
SPELLINGS = [(column, *pair) for column, pairs in LABELS.items() for pair in pairs]


@pytest.mark.parametrize(("column", "safe", "unsafe"), SPELLINGS)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_labels_of_any_spelling_part_a_file(tmp_path: Path, kind: str, column: str, safe: str, unsafe: str) -> None:
    frame = pd.DataFrame({"prompt": ASKED, column: [safe, unsafe], "category": ["a", "b"]})
    file = tmp_path / f"a.{kind}"
    if kind == "csv":
        frame.to_csv(file, index=False)
    else:
        frame[column] = frame[column].map(
            lambda value: {"true": True, "false": False, "1": 1, "0": 0}.get(value, value)
        )
        frame.to_json(file, orient="records", lines=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(load_requests(file).texts) == [ASKED[1]]
        assert list(load_requests(file, part="safe").texts) == [ASKED[0]]


@pytest.mark.parametrize(
    ("text", "part", "expected", "message"),
    [
        ("prompt,label\na,0\nb,1\n", "unsafe", ["b"], "column 'label' does not say what 0, 1 mean; 1 is taken as h"),
        (
            "prompt,completion,response_harm_label\na,x,harmful\n",
            "unsafe",
            ["a"],
            "label' looks like a label, but is",
        ),
        ("prompt,label\na,safe\nb,\nc,unsafe\n", "unsafe", ["c"], "a.csv: line 3 has no value in column 'label'"),
    ],
)
def test_a_label_that_is_not_used_or_not_sure_is_told(
    tmp_path: Path, text: str, part: Any, expected: list[str], message: str
) -> None:
    with pytest.warns(UserWarning, match=message):
        assert list(load_requests(write(tmp_path, "a.csv", text), part=part).texts) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "prompt,label\na,safe\nb,unsafe\nc,maybe\n",
            r"a.csv: column 'label' looks like .* 'maybe' beside 'safe'",
        ),
        (
            "prompt,label,is_safe\na,safe,0\nb,unsafe,0\n",
            r"'label' and 'is_safe' disagree on .* \(line 2\)",
        ),
        ("prompt,label\na,safe\n", r"a.csv holds no unsafe requests: column 'label' has only 'safe'"),
    ],
)
def test_labels_that_part_nothing_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_requests(write(tmp_path, "a.csv", text))


def test_the_context_of_harmbench_comes_before_its_behaviour(tmp_path: Path) -> None:
    head = "Behavior,FunctionalCategory,SemanticCategory,Tags,ContextString,BehaviorID\n"
    rows = "Say how.,standard,illegal,,,one\nGo on.,contextual,illegal,context,A door.,two\n"
    assert list(load_requests(write(tmp_path, "a.csv", head + rows)).texts) == ["Say how.", "A door.\n\n---\n\nGo on."]


def test_what_is_no_name_is_told_the_names() -> None:
    with pytest.raises(ValueError, match="requests: 'nothing' is neither a file nor one of 'harmful'"):
        load_requests("nothing")


def test_an_empty_text_file_holds_no_requests(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no requests"):
        load_requests(write(tmp_path, "none.txt", "\n\n"))


@pytest.mark.parametrize("answers", ["response", "completion", "model_output", "response_0", "messages"])
@pytest.mark.parametrize("label", ["is_safe", "label", "harmful", "toxicity"])
def test_the_label_of_an_answer_is_not_that_of_a_request(tmp_path: Path, answers: str, label: str) -> None:
    """BeaverTails and others: a harmless answer to a harmful request is safe."""
    values = [False, True] if label != "label" else ["unsafe", "safe"]
    rows = [{"prompt": text, answers: ["x"], label: value} for text, value in zip(ASKED, values, strict=True)]
    file = write(tmp_path, "a.json", json.dumps(rows))
    with pytest.warns(UserWarning, match=f"column '{label}' .*may be about the answers in column '{answers}'"):
        assert list(load_requests(file).texts) == list(ASKED)


@pytest.mark.parametrize(
    ("label", "values"),
    [
        ("prompt_harm_label", ["unharmful", "harmful"]),  # WildGuardMix
        ("type", ["homonyms", "contrast_homonyms"]),  # completions of XSTest
        ("prompt_toxicity", [0, 1]),
    ],
)
def test_the_label_of_a_request_is_used_beside_answers(tmp_path: Path, label: str, values: list[Any]) -> None:
    pd.DataFrame({"prompt": ASKED, "completion": ["a", "b"], label: values}).to_csv(file := tmp_path / "a.csv")
    with warnings.catch_warnings(action="error"):
        assert list(load_requests(file).texts) == [ASKED[1]]
        assert list(load_requests(file, part="safe").texts) == [ASKED[0]]


@pytest.mark.parametrize("column", ["system_prompt", "premise", "history", "input_2"])
def test_a_column_that_carries_the_request_and_is_not_read_is_told(tmp_path: Path, column: str) -> None:
    file = write(tmp_path, "a.csv", f"prompt,{column},id\nGo on.,A door.,1\n")
    with pytest.warns(UserWarning, match=f"a.csv: '{column}' is left out, only 'prompt' is read"):
        assert list(load_requests(file).texts) == ["Go on."]
    with warnings.catch_warnings(action="error"):
        assert list(load_requests(file, column="prompt").texts) == ["Go on."]


@pytest.mark.parametrize("column", ["context", "Passage", "article"])
def test_what_a_request_is_about_comes_before_it(tmp_path: Path, column: str) -> None:
    file = write(tmp_path, "a.csv", f"question,{column}\nWho?,A cat sat.\n")
    with warnings.catch_warnings(action="error"):
        assert list(load_requests(file).texts) == ["A cat sat.\n\n---\n\nWho?"]


@pytest.mark.parametrize("source", [pd.DataFrame({"prompt": ["How?"]}), ["How?"], iter(["How?"]), None])
def test_what_is_neither_a_name_nor_a_file_is_refused(source: Any) -> None:
    with pytest.raises(ValueError, match=r"^source is .*; give a name or a file"):
        load_requests(source)
