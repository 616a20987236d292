"""Published sets of questions: what is asked, what the targets are, and rows that are none of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechheads.gating import blimp, commonsense_qa, gsm8k

BARKS = ("Which of these barks?", {"A": "a cat", "B": "a dog", "C": "a cow"}, "B")
FLIES = ("Which of these flies?", {"A": "an owl", "B": "a pig", "C": "a snail"}, "A")
SWIMS = ("Which of these swims?", {"A": "a hen", "B": "a goat", "C": "a trout"}, "C")
RIGHT = {question: options[answer] for question, options, answer in (BARKS, FLIES, SWIMS)}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", "utf-8")
    return path


def published(question: str, options: dict[str, str], answer: str) -> dict[str, Any]:
    choices = [{"label": label, "text": text} for label, text in options.items()]
    return {"id": "x", "question": {"stem": question, "choices": choices}, "answerKey": answer}


def hub(question: str, options: dict[str, str], answer: Any) -> dict[str, Any]:
    return {
        "question": question,
        "choices": {"label": list(options), "text": list(options.values())},
        "answerKey": answer,
    }


# CommonsenseQA ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [published, hub])
def test_questions_keep_their_right_option(tmp_path: Path, form: Callable) -> None:
    path = lines(tmp_path / "csqa.jsonl", *(form(*item) for item in (BARKS, FLIES, SWIMS)))
    task = commonsense_qa(path)
    assert sorted(task.cluster or ()) == sorted(RIGHT)
    assert task.name == "csqa"
    for prompt, target, cluster in zip(task.prompts, task.targets, task.cluster or (), strict=True):
        example, asked = re.findall(r"Question: (.+?)\nAnswer:( [A-C])?", str(prompt), re.DOTALL)
        assert asked[1] == ""
        assert asked[0].startswith(f"{cluster}\n")
        for (text, _), letter in ((example, example[1]), (asked, str(target))):
            question, *options = text.split("\n")
            assert len(options) == 3
            assert f"{letter.strip()}: {RIGHT[question]}" in options
        assert example[0].split("\n")[0] != cluster


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "x"}, "there is no 'answerKey'. Its keys are 'question'"),
        (hub("x", {"A": "1"}, "A"), "the question 'x' has only one option; give at least 2"),
        (hub("x", {"A": "1", "B": "2"}, "C"), "the answer is 'C'; the options are 'A', 'B'"),
    ],
)
def test_bad_questions_are_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"a.jsonl, row 2 is not of CommonsenseQA: {message}"):
        commonsense_qa(lines(tmp_path / "a.jsonl", published(*BARKS), row))


# GSM8K --------------------------------------------------------------------------------------------------------------


def test_the_final_answer_is_the_target(tmp_path: Path) -> None:
    rows = [
        {"question": "How much is 9 + 9? ", "answer": "9 + 9 = <<9+9=18>>18\n#### 18"},
        {"question": "How many meters are 1.2 kilometers?", "answer": "#### 1,200\n"},
        {"question": "What is 2 - 5.5?", "answer": "It is\n#### -3.5"},
    ]
    task = gsm8k(lines(tmp_path / "gsm.jsonl", *rows))
    found = dict(zip(task.cluster or (), task.targets, strict=True))
    asked = [row["question"].strip() for row in rows]
    assert found == dict(zip(asked, (" 18", " 1200", " -3.5"), strict=True))
    for prompt, cluster in zip(task.prompts, task.cluster or (), strict=True):
        examples = [f"Question: {q}\nAnswer:{found[q]}\n\n" for q in asked if q != cluster]
        assert prompt in [f"{example}Question: {cluster}\nAnswer:" for example in examples]


@pytest.mark.parametrize("answer", ["18", "#### eighteen"])
def test_an_answer_without_a_number(tmp_path: Path, answer: str) -> None:
    good = {"question": "x", "answer": "#### 1"}
    with pytest.raises(
        ValueError, match=r"a\.jsonl, row 2 is not of GSM8K: the answer ends in .*; it must end in a num"
    ):
        gsm8k(lines(tmp_path / "a.jsonl", good, {"question": "y", "answer": answer}))


# BLiMP --------------------------------------------------------------------------------------------------------------


def pair(good: str, bad: str, **fields: Any) -> dict[str, Any]:
    return {"sentence_good": good, "sentence_bad": bad, **fields}


def test_the_good_word_follows_what_both_share(tmp_path: Path) -> None:
    rows = [
        pair("Two boys play here.", "Two boys plays here.", UID="agreement", one_prefix_method=True),
        pair("Two boys sleep.", "Two boys sleeps.", UID="agreement"),
        pair("The boy isn't old.", "The boy aren't old.", UID="agreement"),
    ]
    task = blimp(lines(tmp_path / "b.jsonl", *rows))
    assert task.prompts == ("Two boys", "Two boys", "The boy")
    assert task.targets == (" play", " sleep", " isn't")
    assert (task.name, task.cluster, task.source) == ("b", task.prompts, "BLiMP, b.jsonl")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (pair("A b.", "A b."), "no word differs between 'A b.' and 'A b.'"),
        (pair("He runs.", "They runs."), "the sentences differ from the first word on"),
        (pair("A b.", "A c.", one_prefix_method=False), "one_prefix_method is false"),
        ({"sentence_good": "A b."}, "there is no 'sentence_bad'. Its keys are 'sentence_good'"),
    ],
)
def test_bad_pairs_are_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"b.jsonl, row 2 is not of BLiMP: {message}"):
        blimp(lines(tmp_path / "b.jsonl", pair("Two boys play.", "Two boys plays."), row))
