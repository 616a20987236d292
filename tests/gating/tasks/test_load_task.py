"""Tasks by name, and from files that are recognised by their fields."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import mechheads as mh
from mechheads.gating import load_task
from mechheads.gating.tasks.load_task import needs_model
from mechheads.gating.tasks.task_files import read_blimp, read_commonsense_qa, read_gsm8k, read_prompts, read_questions

BLIMP = [
    {"sentence_good": f"The {who} sings.", "sentence_bad": f"The {who} sing.", "UID": "agreement"}
    for who in ("cat", "dog")
]
CHOICES = [{"label": "A", "text": "a dog"}, {"label": "B", "text": "a cat"}]
QUESTIONS = [
    {"question": {"stem": stem, "choices": CHOICES}, "answerKey": key}
    for stem, key in (("Barks?", "A"), ("Purrs?", "B"))
]
HUB = [
    {"question": stem, "choices": {"label": ["A", "B"], "text": ["a dog", "a cat"]}, "answerKey": key}
    for stem, key in (("Barks?", "A"), ("Purrs?", "B"))
]
LETTERED = [{"input": f"{stem}\na: a dog\nb: a cat", "output": key} for stem, key in (("Barks?", "a"), ("Purrs?", "b"))]
PROBLEMS = [{"question": f"What is {i} + 1?", "answer": f"Add.\n#### {i + 1}"} for i in (1, 5)]
RELATION = {
    "name": "capitals",
    "category": "Knowledge",
    "pairs": [["France", "Paris"], ["Spain", "Madrid"], ["Italy", "Rome"]],
    "few_shot": ["The capital of {source} is {target}."],
}


def write(folder: Path, content: Any, *, lines: bool = True) -> Path:
    file = folder / "given.json"
    file.write_text("\n".join(map(json.dumps, content)) if lines else json.dumps(content, indent=1))
    return file


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize(
    ("rows", "read"),
    [
        (BLIMP, read_blimp),
        (QUESTIONS, read_commonsense_qa),
        (HUB, read_commonsense_qa),
        (LETTERED, read_commonsense_qa),
        (PROBLEMS, read_gsm8k),
        ([{"prompt": "1 + 1 =", "target": " 2"}], read_prompts),
        ([{"input": "hot", "output": "cold"}, {"input": "big", "output": "small"}], read_questions),
    ],
)
def test_a_public_file_is_recognised_by_its_fields(tmp_path, rows, read, lines) -> None:
    file = write(tmp_path, rows, lines=lines)
    assert not needs_model(file)
    assert load_task(file) == read(file)


def test_some_items_are_drawn_by_the_seed(tmp_path) -> None:
    file = write(tmp_path, [{"prompt": f"{i} =", "target": f" {i}"} for i in range(20)])
    some = load_task(file, n=5)
    assert len(some) == 5 and len(set(some.prompts)) == 5
    assert some == load_task(file, n=5) != load_task(file, n=5, seed=1)
    with pytest.raises(ValueError, match="n is 21, but task 'given' has 20 items"):
        load_task(file, n=21)


def test_some_names_need_a_model() -> None:
    assert [needs_model(name) for name in ("math", "aba_abb", "capitals", "copying")] == [False, True, True, True]


def test_a_relation_becomes_a_task(tmp_path, loaded) -> None:
    file = write(tmp_path, RELATION, lines=False)
    assert needs_model(file)
    with pytest.raises(ValueError, match="is a relation and needs a model"):
        load_task(file)
    (tmp_path / "more.json").write_text(
        json.dumps(RELATION | {"pairs": [*RELATION["pairs"], ["Germany", "Berlin"], ["big", "small"], ["dog", "cat"]]})
    )
    task = load_task(tmp_path / "more.json", model=loaded("gpt2"))
    assert task.name == "capitals" and set(task.targets) >= {" Paris", " Rome"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("3", "holds '3'; give one JSON object per line"),
        ("[]", "is empty; give one JSON object per line"),
        ('[["a", "b"]]', "has no two different questions"),
        ('{"pairs": [["a", "b"]]}', "is a relation and needs a model"),
        ('{"sub_label": "a", "obj_label": "b"}', "is a relation and needs a model"),
        ('{"text": "a"}', "is not recognised by its fields 'text'; its objects must have"),
        ("{}", r"its fields \(none\)"),
        ("nonsense", "is not JSON"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path, content, message) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_task(tmp_path / "x.json")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task 'sintax' is neither a file nor one of .*Did you mean \"syntax\""):
        load_task("sintax")


WORDS = (("hot", "cold"), ("big", "small"), ("up", "down"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps([{"output": b, "input": a} for a, b in WORDS])),
        ("a.jsonl", "\n".join(json.dumps({"question": a, "answer": b}) for a, b in WORDS)),
        ("a.csv", "input,output,note\nhot,cold,\nbig,small,\nup,down,\n"),
        ("a.tsv", "question\tanswer\nhot\tcold\nbig\tsmall\nup\tdown\n"),
        ("a.json", json.dumps(WORDS)),
        ("a.jsonl", "\n".join(map(json.dumps, WORDS))),
        ("a.json", json.dumps({"name": "b", "examples": [{"input": a, "target": b} for a, b in WORDS]})),
        ("a.json", json.dumps({"examples": [{"input": a, "target": [b, "other"]} for a, b in WORDS]}, indent=1)),
    ],
)
def test_pairs_of_any_form_are_asked_after_another_pair(tmp_path, name, text) -> None:
    (tmp_path / name).write_text(text)
    task = load_task(tmp_path / name)
    assert dict(zip(task.cluster or (), task.targets, strict=True)) == {a: f" {b}" for a, b in WORDS}
    for prompt, asked in zip(task.prompts, task.cluster or (), strict=True):
        examples = [f"Question: {a}\nAnswer: {b}\n\nQuestion: {asked}\nAnswer:" for a, b in WORDS if a != asked]
        assert prompt in examples


@pytest.mark.parametrize("key", ["target", "answer", "completion"])
def test_a_prompt_is_continued_as_it_is_written(tmp_path, key) -> None:
    (tmp_path / "a.csv").write_text(f'prompt,{key}\n"One, two,", three\n')
    task = load_task(tmp_path / "a.csv")
    assert (task.prompts, task.targets) == (("One, two,",), (" three",))


GOOD = [{"input": f"{i} + 1", "output": str(i + 1)} for i in range(10)]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"input": "1 + 2", "output": ""}, "line 11: 'output' is ''; it must be a text"),
        ({"input": "same", "output": "same "}, "line 11: the answer repeats the prompt, 'same'"),
        ({"input": "1 + 2"}, "line 11: there is no key 'output'"),
    ],
)
def test_a_tenth_of_the_items_may_be_unusable_and_is_told(tmp_path, bad, why) -> None:
    with pytest.warns(UserWarning, match=f"given.json: 1 of 11 items left out, such as .*{why}"):
        assert len(load_task(write(tmp_path, [*GOOD, bad]))) == 10
    with pytest.raises(ValueError, match=rf"{why}.*line 12.* 2 of 12 items of .*given.json cannot be used"):
        load_task(write(tmp_path, [*GOOD, bad, bad]))


def test_blimp_with_one_equal_pair_of_many_opens(tmp_path) -> None:
    same = {"sentence_good": "The boy sees.", "sentence_bad": "The boy sees."}
    with pytest.warns(UserWarning, match="1 of 21 items left out, such as .*line 21: no word differs"):
        assert len(load_task(write(tmp_path, [*BLIMP * 10, same]))) == 20


def test_items_that_do_not_fit_the_model_are_left_out_and_told(tmp_path, tiny) -> None:
    model = mh.load(tiny("gpt2"))
    rows = [{"prompt": " John went", "target": " Paris"}] * 10
    long = {"prompt": " John went" * 500, "target": " Paris"}
    with pytest.warns(UserWarning, match="given.json: 1 of 11 items left out, such as item 10: "):
        assert len(load_task(write(tmp_path, [*rows, long]), model=model)) == 10
    with pytest.raises(ValueError, match=r"item 10: .*item 11: .* 2 of 12 items of .*given\.json cannot be used"):
        load_task(write(tmp_path, [*rows, long, long]), model=model)


CONTEXT = "The cat sat on the mat."
ANSWERED = [
    ("Who sat?", {"text": ["The cat"], "answer_start": [0]}),
    ("Where?", {"text": ["On the mat", "mat"], "answer_start": [12, 19]}),
]
DISTINCT = [("Translate to French.", "cat", "chat"), ("Give the opposite.", "hot", "cold"), ("Count.", "", "one")]


def asked(task: mh.Task) -> list[str]:
    """What is asked, without the worked example."""
    return [str(prompt).rpartition("Question: ")[2].removesuffix("\nAnswer:") for prompt in task.prompts]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [{"instruction": a, "input": b, "output": c} for a, b, c in DISTINCT],  # Alpaca
            {f"{a}\n{b}".strip(): c for a, b, c in DISTINCT},
        ),
        (
            [{"instruction": a, "context": b, "response": c, "category": "qa"} for a, b, c in DISTINCT],  # Dolly
            {f"{a}\n{b}".strip(): c for a, b, c in DISTINCT},
        ),
        (
            [
                {"id": "1", "title": "Cats", "context": f"{CONTEXT} {i}", "question": q, "answers": a}
                for i, (q, a) in enumerate(ANSWERED)  # SQuAD
            ],
            {f"{CONTEXT} 0\nWho sat?": "The cat", f"{CONTEXT} 1\nWhere?": "On the mat"},
        ),
        (
            [{"passage": f"{CONTEXT} {i}", "question": q, "answer": "yes"} for i, q in enumerate(("A?", "B?"))],
            {f"{CONTEXT} 0\nA?": "yes", f"{CONTEXT} 1\nB?": "yes"},
        ),
        (
            [{"system": "Be short.", "question": q, "answer": a} for q, a in [("A?", "yes"), ("B?", "no")]],
            {"Be short.\nA?": "yes", "Be short.\nB?": "no"},
        ),
    ],
)
@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_all_parts_of_a_question_are_asked(tmp_path, rows, expected, kind) -> None:
    if kind == "parquet":
        pd.DataFrame(rows).to_parquet(file := tmp_path / "given.parquet")
    else:
        file = write(tmp_path, rows)
    with warnings.catch_warnings(action="error"):
        task = load_task(file)
    found = dict(zip(asked(task), (str(target).strip() for target in task.targets), strict=True))
    assert found == expected


def test_questions_about_one_context_are_one_cluster(tmp_path) -> None:
    rows = [{"context": c, "question": f"{q}?", "answer": q} for c in ("One.", "Two.") for q in ("A", "B")]
    task = load_task(write(tmp_path, rows))
    assert sorted(task.cluster or ()) == ["One.", "One.", "Two.", "Two."]
    assert all(("One." in str(prompt)) and ("Two." in str(prompt)) for prompt in task.prompts)


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({"prompt": "1 + 1 =", "target": " 2", "system": "Add."}, "'system' is left out"),
        (
            {"prompt": "It is", "completion": " 2", "premise": "a", "hypothesis": "b"},
            "'premise', 'hypothesis' are",
        ),
        ({"question": "What?", "answer": "It", "speech": "One two."}, "'speech' is left out"),
        ({"input": "hot", "output": "cold", "answer": "warm"}, "'answer' is left out"),
        (PROBLEMS[0] | {"passage": "Some."}, "'passage' is left out"),
        (HUB[0] | {"context": "Some."}, "'context' is left out"),
    ],
)
def test_columns_that_are_left_out_are_told(tmp_path, row, names) -> None:
    rows = [
        row,
        {name: f"{cell} 7" if isinstance(cell, str) and "A" not in cell else cell for name, cell in row.items()},
    ]
    with pytest.warns(UserWarning, match=f"given.json: {names}"):
        load_task(write(tmp_path, rows))


@pytest.mark.parametrize("options", [{"choices": ["a", "b"]}, {"A": "a", "B": "b"}, {"option1": "a", "option2": "b"}])
def test_a_question_without_its_options_is_refused(tmp_path, options) -> None:
    rows = [{"question": f"{q}?", "answer": "B"} | options for q in "xy"]
    with pytest.raises(ValueError, match=f"has '{next(iter(options))}', from which an answer is chosen"):
        load_task(write(tmp_path, rows))
