"""Tasks from files: JSONL of prompts and targets, and the formats of CommonsenseQA, BLiMP and GSM8K."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechheads.files.text import parse_json, read_text
from mechheads.gating.tasks.questions import Question, lettered, question_task
from mechheads.gating.tasks.task import Task

PathLike = str | Path
_Row = tuple[str, Mapping[str, Any]]
"""An object of a file, after its location for error messages."""


def read_task(path: PathLike, prompt: str = "prompt", target: str = "target", *, cluster: str | None = None) -> Task:
    """A task from a JSONL file with one object per line, which holds a prompt and its target.

    Args:
        path: the file; the task is named after it.
        prompt, target, cluster: the keys of the prompt, the target and, optionally, the cluster.

    Raises:
        ValueError: if there is no such file or a line is not such an object. The message names the file and the line.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "sums.jsonl")
    >>> _ = path.write_text('{"prompt": "1 + 2 =", "target": " 3"}\\n{"prompt": "2 + 2 =", "target": " 4"}\\n')
    >>> mh.gating.read_task(path).targets
    (' 3', ' 4')
    """
    rows = _rows(path)
    return Task(
        [_text(row, prompt) for row in rows],
        [_text(row, target) for row in rows],
        name=Path(path).stem,
        source=_source(path),
        cluster=None if cluster is None else [_text(row, cluster) for row in rows],
    )


def read_commonsense_qa(path: PathLike, seed: int = 0) -> Task:
    """A task of multiple-choice questions from a file in the format of CommonsenseQA (Talmor et al., 2019).

    An object of the file has one of three forms: ``{"question": {"stem", "choices": [{"label", "text"}]},
    "answerKey"}``, as published; ``{"question", "choices": {"label", "text"}, "answerKey"}``, as on the hub; or
    ``{"input", "output"}``, with the options as lines ``a: ...`` after the question. An option that is given twice
    counts once.

    Prompts are as in the task ``common_sense``: options shuffled, and one worked example before each question,
    another question of the file. Cluster: the question.

    Args:
        path: a JSONL file, or a JSON file with a list.
        seed: for the order of questions and options, and for the examples.

    Raises:
        ValueError: if an object has none of these forms, has fewer than 2 options or an answer that is not one of
            them (the message names the file and the line), or if the file has fewer than 2 questions.
    """
    rng = np.random.default_rng(seed)
    questions = [lettered(*_options(row), rng) for row in _rows(path)]
    return question_task(questions, Path(path).stem, _source(path), rng=rng)


def read_gsm8k(path: PathLike, seed: int = 0) -> Task:
    """A task of word problems from a file in the format of GSM8K (Cobbe et al., 2021); targets are the final answers.

    An object holds ``question`` and ``answer``, which ends in ``#### 18``. Commas in the number are removed. One
    worked example, another problem of the file, comes before each question.

    Args:
        path: a JSONL file, or a JSON file with a list.
        seed: for the order of the problems and for the examples.

    Raises:
        ValueError: if an object is not such a problem (the message names the file and the line), or if the file has
            fewer than 2 problems.
    """
    questions = []
    for row in _rows(path):
        text, answer = _text(row, "question").strip(), _text(row, "answer")
        number = re.search(r"####\s*(-?[\d.,]*\d)\s*$", answer)
        if number is None:
            raise ValueError(f'{row[0]}: "answer" ends in {answer[-30:]!r}; it must end in a number such as "#### 18"')
        questions.append(Question(text, number[1].replace(",", ""), text))
    return question_task(questions, Path(path).stem, _source(path), rng=np.random.default_rng(seed))


def read_blimp(path: PathLike) -> Task:
    """A task of minimal pairs from a file in the format of BLiMP (Warstadt et al., 2020).

    An object holds ``sentence_good`` and ``sentence_bad``. The prompt is their common beginning up to the first word
    that differs. The target is this word of the good sentence, without punctuation after it. Cluster: the prompt.

    Args:
        path: a JSONL file, or a JSON file with a list.

    Raises:
        ValueError: if an object is not such a pair, if its sentences are equal or have no common beginning, or if
            ``one_prefix_method`` is false. The message names the file and the line.
    """
    rows = _rows(path)
    pairs = [_continuation(row) for row in rows]
    names = {str(fields["UID"]) for _, fields in rows if "UID" in fields}
    return Task(
        [prompt for prompt, _ in pairs],
        [target for _, target in pairs],
        name=names.pop() if len(names) == 1 else Path(path).stem,
        source=_source(path),
        cluster=[prompt for prompt, _ in pairs],
    )


def _source(path: PathLike) -> str:
    return f"file {Path(path).name}"


def _rows(path: PathLike) -> list[_Row]:
    """The objects of a JSONL file, or of a JSON file that holds a list of them."""
    file = Path(path).expanduser()
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise ValueError(f"there is no file {str(path)!r}")
    text = read_text(file)
    rows = list(_listed(text, file) if text.lstrip().startswith("[") else _lines(text, file))
    if not rows:
        raise ValueError(f"{file} holds no items; give one JSON object per line")
    return rows


def _listed(text: str, file: Path) -> Iterator[_Row]:
    for index, fields in enumerate(parse_json(text, str(file))):
        yield _object(fields, f"{file}, item {index}")


def _lines(text: str, file: Path) -> Iterator[_Row]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{file}, line {number}"
            yield _object(parse_json(line, where), where)


def _object(fields: Any, where: str) -> _Row:
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {str(fields)[:60]!r} is not a JSON object")
    return where, fields


def _text(row: _Row, key: str) -> str:
    where, fields = row
    if key not in fields:
        raise ValueError(f"{where}: there is no key {key!r}; the keys are {', '.join(map(repr, fields)) or '(none)'}")
    if not isinstance(fields[key], str) or not fields[key].strip():
        raise ValueError(f"{where}: {key!r} is {fields[key]!r}; it must be a text")
    return fields[key]


def _options(row: _Row) -> tuple[str, list[str]]:
    """A question and its options, the right one first."""
    where, fields = row
    try:
        question, options, answer = _published(fields) if "answerKey" in fields else _written_out(fields)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f'{where}: not a question with options; it must hold "question", "choices" and "answerKey" as in '
            'CommonsenseQA, or an "input" with the options as lines "a: ..." and an "output"'
        ) from error
    if not isinstance(answer, str) or answer not in options:
        raise ValueError(f"{where}: the answer is {answer!r}; the options are {', '.join(map(repr, options))}")
    different = list(dict.fromkeys([options[answer], *options.values()]))
    if len(different) < 2:
        raise ValueError(f"{where}: the question {question!r} has only one option; give at least 2")
    return question, different


def _published(fields: Mapping[str, Any]) -> tuple[str, dict[str, str], str]:
    question = fields["question"]
    if isinstance(question, str):
        stem, choices = question, fields["choices"]
    else:
        stem, choices = question["stem"], question["choices"]
    if isinstance(choices, Mapping):
        options = dict(zip(choices["label"], choices["text"], strict=True))
    else:
        options = {choice["label"]: choice["text"] for choice in choices}
    return stem.strip(), {label: text.strip() for label, text in options.items()}, fields["answerKey"]


def _written_out(fields: Mapping[str, Any]) -> tuple[str, dict[str, str], str]:
    first, *lines = fields["input"].strip().split("\n")
    options = {}
    for line in lines:
        label, text = line.split(":", 1)
        options[label.strip()] = text.strip()
    return first.strip(), options, fields["output"].strip()


def _continuation(row: _Row) -> tuple[str, str]:
    """The prompt and the target of a minimal pair."""
    where, fields = row
    good, bad = (_text(row, f"sentence_{kind}").split() for kind in ("good", "bad"))
    if fields.get("one_prefix_method") is False:
        raise ValueError(
            f'{where}: "one_prefix_method" is false: the two sentences are not one beginning with two continuations, '
            "so they give no prompt and target"
        )
    same = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), None)
    if same is None:
        raise ValueError(f"{where}: no word differs between {' '.join(good)!r} and {' '.join(bad)!r}")
    if not same:
        raise ValueError(f"{where}: the sentences differ from the first word on, so there is no prompt: {good[0]!r}")
    return " ".join(good[:same]), " " + (good[same].rstrip(".,;:!?") or good[same])
