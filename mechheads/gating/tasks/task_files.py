"""Tasks from files: prompts and targets, questions and answers, and the formats of CommonsenseQA, BLiMP and GSM8K."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mechheads.files.columns import cell_text
from mechheads.files.rows import carries_question, holds_something, read_rows
from mechheads.gating.tasks.questions import Question, lettered, question_task
from mechheads.gating.tasks.task import Task
from mechheads.messages.warn import warn

PathLike = str | Path
QUESTIONS = (
    *(("input", "output"), ("input", "target"), ("question", "answer"), ("question", "answers")),
    *(("instruction", "output"), ("instruction", "response")),
)
"""The keys of a question and its answer."""
_CONTEXTS = ("context", "passage", "paragraph", "article")
_PARTS = ("system", "instruction", *_CONTEXTS, "question", "input")
"""Keys of a question's parts, in the order in which they are asked."""
_CHOICES = re.compile(r"(?:choices?|options?|endings?)_?[a-e\d]?|[a-e]", re.I)
"""Keys of what a question lets one choose from."""
_Row = tuple[str, Any]
T = TypeVar("T")


def read_prompts(path: PathLike, target: str = "target") -> Task:
    """A task from a file with a prompt and its target in each object or row.

    Args:
        path: a JSONL, JSON, CSV or Parquet file; the task is named after it.
        target: the key or column of the target. A whole number is its digits, as in CSV; other numbers, booleans,
            lists and objects are no text.

    Raises:
        ValueError: if there is no such file, or more than a tenth of its entries cannot be used: one of the keys or its
            text is missing, or the target repeats the prompt. The message names the file and the lines. Fewer entries
            are left out, with a warning.
    """
    keys = ("prompt", target)
    _tell_left_out(path, keys)
    both = _each(path, lambda row: _apart(row, *(_text(row, key) for key in keys)))
    prompts, targets = zip(*both, strict=True)
    return Task(prompts, targets, name=Path(path).stem, source=_source(path))


def read_questions(path: PathLike, seed: int = 0) -> Task:
    """A task of questions and answers, or of words and what belongs to them; each comes after a worked example.

    An entry of the file is an object with ``input`` and ``output`` (or ``target``, which may be a list whose first text
    counts), with ``question`` and ``answer`` (or ``answers``, as in SQuAD), or with ``instruction`` and ``output`` or
    ``response``; or a list of two texts. ``{"examples": [...]}`` of BIG-bench is read too. What else says what is
    asked stands before it, one under the other: ``system``, ``instruction``, ``context`` or ``passage``, ``question``,
    ``input``. Questions about one context are one cluster.

    Args:
        path: a JSONL, JSON, CSV or Parquet file.
        seed: for the order of the questions and for the examples.

    Raises:
        ValueError: if more than a tenth of the entries is not such a pair, lacks one of the two, or has an answer that
            repeats its question (the message names the file and the lines), the questions have options to choose from,
            or the file has fewer than 2 questions. Fewer are left out, with a warning.

    Warns:
        if a column with texts is left out; it is named.
    """

    def question(row: _Row) -> Question:
        text, answer, about = (part.strip() for part in _apart(row, *_pair(row)))
        return Question(text, answer, about or text)

    answers = {answer for _, answer in QUESTIONS}
    first = next((row for _, row in read_rows(Path(path).expanduser()) if isinstance(row, dict)), {})
    answer = next((keys[1] for keys in QUESTIONS if set(keys) <= first.keys()), "")
    _tell_left_out(path, (*_PARTS, answer), any_text=True, others=tuple(answers - {answer}))
    return question_task(_each(path, question), Path(path).stem, _source(path), rng=np.random.default_rng(seed))


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
    _tell_left_out(path, ("question", "choices", "answerKey", "input", "output"))
    rng = np.random.default_rng(seed)
    questions = [lettered(*options, rng) for options in _each(path, _options)]
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

    def problem(row: _Row) -> Question:
        text, answer = _text(row, "question").strip(), _text(row, "answer")
        number = re.search(r"####\s*(-?[\d.,]*\d)\s*$", answer)
        if number is None:
            raise ValueError(f'{row[0]}: "answer" ends in {answer[-30:]!r}; it must end in a number such as "#### 18"')
        return Question(text, number[1].replace(",", ""), text)

    _tell_left_out(path, ("question", "answer"))
    return question_task(_each(path, problem), Path(path).stem, _source(path), rng=np.random.default_rng(seed))


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
    made = _each(path, lambda row: (*_continuation(row), row[1].get("UID")))
    names = {str(name) for *_, name in made if name is not None}
    return Task(
        [prompt for prompt, *_ in made],
        [target for _, target, _ in made],
        name=names.pop() if len(names) == 1 else Path(path).stem,
        source=_source(path),
        cluster=[prompt for prompt, *_ in made],
    )


def _tell_left_out(path: PathLike, used: Sequence[str], *, any_text: bool = False, others: Sequence[str] = ()) -> None:
    """Warn of columns that say what is asked, or have texts, and are not used.

    Args:
        any_text: whether every column of texts is told, but for names, marks and remarks.
        others: further columns to tell.

    Raises:
        ValueError: if ``any_text``, and the questions have options to choose from.
    """
    rows = [row for _, row in read_rows(Path(path).expanduser()) if isinstance(row, dict)]
    given = dict.fromkeys(name for row in rows for name, cell in row.items() if holds_something(cell))
    left = [name for name in given if name not in used]
    if any_text and (choices := [name for name in left if _CHOICES.fullmatch(str(name))]):
        raise ValueError(
            f"{path} has {choices[0]!r}, from which an answer is chosen, and would be asked without it; give objects "
            'as those of CommonsenseQA ("question", "choices", "answerKey"), or mh.Task(prompts, targets)'
        )
    told = [
        name
        for name in left
        if carries_question(name) or name in others or (any_text and not _REMARKS.fullmatch(str(name).lower()))
    ]
    if told:
        how = f"call it one of {', '.join(map(repr, _PARTS))}" if any_text else f"write it into {used[0]!r}"
        what = f"{', '.join(map(repr, told))} {'are' if len(told) > 1 else 'is'} left out"
        warn(f"{path}: {what}; if it is part of what is asked, {how}")


_REMARKS = re.compile(
    r"_?\w*(?:id|idx|index|url|uri|date)|name|notes?|comments?|remarks?|tags?|categor(?:y|ies)|subjects?|topics?|titles?|type|"
    r"kind|source|split|subset|level|difficulty|lang|language|license|licence|annotator|author|explanations?|rationales?|"
    r"keywords?|dataset"
)
"""Names of columns that say something about a question and are no part of it."""


def _source(path: PathLike) -> str:
    return f"file {Path(path).name}"


def _each(path: PathLike, make: Callable[[_Row], T]) -> list[T]:
    """What each entry of a file gives; a few that give nothing are left out.

    Raises:
        ValueError: if there is no such file, it holds nothing, or more than a tenth of its entries gives nothing.
    """
    file = Path(path).expanduser()
    rows = read_rows(file)
    if not rows:
        raise ValueError(f"{file} holds no items; give one JSON object per line")
    made, faults = [], []
    for row in rows:
        try:
            made.append(make(row))
        except ValueError as error:
            faults.append(str(error))
    return sound(made, faults, f"{file}")


def sound(made: list[T], faults: Sequence[str], what: str) -> list[T]:
    """The items that can be used; a warning counts those that cannot.

    Args:
        faults: for each of the others, where it is and what is wrong with it.

    Raises:
        ValueError: if they are more than a tenth; the first are named.
    """
    n = len(made) + len(faults)
    if 10 * len(faults) > n:
        raise ValueError(f"{'; '.join(faults[:3])}. {len(faults)} of {n} items of {what} cannot be used")
    if faults:
        warn(f"{what}: {len(faults)} of {n} items left out, such as {faults[0]}")
    return made


def _apart(row: _Row, prompt: str, target: str, *others: str) -> tuple[str, ...]:
    if prompt.strip() == target.strip():
        raise ValueError(f"{row[0]}: the answer repeats the prompt, {prompt!r}")
    return prompt, target, *others


def _pair(row: _Row) -> tuple[str, str, str]:
    """The question of an entry with all of its parts, its answer, and the context that it is about, if there is one.

    An entry is a list of two texts, or an object with one of the pairs of keys.
    """
    where, fields = row
    if isinstance(fields, list):
        fields = {"input": fields[0], "output": fields[1]} if len(fields) == 2 else {}
    if not isinstance(fields, dict):
        fields = {}
    keys = next((keys for keys in QUESTIONS if set(keys) <= fields.keys()), QUESTIONS[0])
    answer: Any = fields.get(keys[1])
    answer = answer.get("text") if isinstance(answer, dict) else answer  # SQuAD
    answer = answer.tolist() if isinstance(answer, np.ndarray) else answer
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if keys[1] in fields:
        fields = fields | {keys[1]: answer}
    parts = {name: fields[name] for name in _PARTS if holds_something(fields.get(name))}
    if not parts.keys() - {"system", *_CONTEXTS}:
        _text((where, fields), keys[0])  # says what is wrong with it
    texts = [_text((where, fields), name).strip() for name in parts]
    about = "\n".join(text for name, text in zip(parts, texts, strict=True) if name in _CONTEXTS)
    return "\n".join(texts), _text((where, fields), keys[1]), about


def _text(row: _Row, key: str) -> str:
    where, fields = row
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {str(fields)[:60]!r} is not a JSON object")
    if key not in fields:
        raise ValueError(f"{where}: there is no key {key!r}; the keys are {', '.join(map(repr, fields)) or '(none)'}")
    text = cell_text(fields[key])
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{where}: {key!r} is {fields[key]!r}; it must be a text")
    return text


def _options(row: _Row) -> tuple[str, list[str]]:
    """A question and its options, the right one first."""
    where, fields = row
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: {str(fields)[:60]!r} is not a JSON object")
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
