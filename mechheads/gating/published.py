"""Published sets of questions as tasks: CommonsenseQA, GSM8K and BLiMP, from the files of their authors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mechheads.gating.task import Question, Task, lettered, question_task
from mechheads.io.rows import rows
from mechheads.messages.arguments import NotNegative, checked

T = TypeVar("T")


@checked
def commonsense_qa(file: str | Path, *, seed: NotNegative = 0) -> Task:
    """The multiple-choice questions of CommonsenseQA (Talmor et al., 2019) as a task.

    Prompts are as in the task ``common_sense``: options in random order, and one worked example, another question of
    the file, before each question; the target is the letter. Cluster: the question. An option that is given twice
    counts once.

    Args:
        file: as published (``question`` with a ``stem`` and ``choices``, and ``answerKey``), as on the hub
            (``question``, ``choices``, ``answerKey``), or with the options as lines ``a: ...`` in ``input``, and
            ``output``.
        seed: for the order of questions and options, and for the examples.
    """
    rng = np.random.default_rng(seed)
    questions = [lettered(*options, rng) for options in _each(file, _options, "CommonsenseQA")]
    return question_task(questions, Path(file).stem, f"CommonsenseQA, {Path(file).name}", rng=rng)


@checked
def gsm8k(file: str | Path, *, seed: NotNegative = 0) -> Task:
    """The word problems of GSM8K (Cobbe et al., 2021) as a task; targets are the final numbers, without commas.

    One worked example, another problem of the file, comes before each question. Cluster: the question.

    Args:
        file: rows with ``question`` and ``answer``, which ends in ``#### 18``.
        seed: for the order of the problems and for the examples.
    """
    problems = _each(file, _problem, "GSM8K")
    return question_task(problems, Path(file).stem, f"GSM8K, {Path(file).name}", rng=np.random.default_rng(seed))


def blimp(file: str | Path) -> Task:
    """The minimal pairs of a file of BLiMP (Warstadt et al., 2020) as a task, named after the file.

    The prompt is the common beginning of ``sentence_good`` and ``sentence_bad`` up to the first word that differs. The
    target is this word of the good sentence, without punctuation after it. Cluster: the prompt.
    """
    prompts, targets = zip(*_each(file, _continuation, "BLiMP"), strict=True)
    return Task(prompts, targets, name=Path(file).stem, source=f"BLiMP, {Path(file).name}", cluster=prompts)


def _each(file: str | Path, make: Callable[[Mapping[str, Any]], T], published: str) -> list[T]:
    """What each row of a file gives; the row of a fault is named."""
    made = []
    for number, row in enumerate(rows(file), 1):
        try:
            made.append(make(row))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{Path(file).name}, row {number} is not of {published}: {why}. Its keys are "
                f"{', '.join(map(repr, row))}"
            ) from error
    return made


def _options(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A question and its options, the right one first."""
    if "answerKey" in row:
        asked, answer = row["question"], row["answerKey"]
        question, choices = (asked, row["choices"]) if isinstance(asked, str) else (asked["stem"], asked["choices"])
        if isinstance(choices, Mapping):
            choices = [
                {"label": one, "text": text} for one, text in zip(choices["label"], choices["text"], strict=True)
            ]
        options = {choice["label"]: choice["text"].strip() for choice in choices}
    else:
        question, *lines = row["input"].strip().split("\n")
        options = {label.strip(): text.strip() for label, text in (line.split(":", 1) for line in lines)}
        answer = row["output"].strip()
    if not isinstance(answer, str) or answer not in options:
        raise ValueError(f"the answer is {answer!r}; the options are {', '.join(map(repr, options)) or '(none)'}")
    different = list(dict.fromkeys([options[answer], *options.values()]))
    if len(different) < 2:
        raise ValueError(f"the question {question!r} has only one option; give at least 2")
    return question.strip(), different


def _problem(row: Mapping[str, Any]) -> Question:
    text, answer = row["question"].strip(), row["answer"]
    number = re.search(r"####\s*(-?[\d.,]*\d)\s*$", answer)
    if number is None:
        raise ValueError(f'the answer ends in {answer[-30:]!r}; it must end in a number such as "#### 18"')
    return Question(text, number[1].replace(",", ""), text)


def _continuation(row: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt and the target of a minimal pair."""
    good, bad = (row[f"sentence_{kind}"].split() for kind in ("good", "bad"))
    if row.get("one_prefix_method") is False:
        raise ValueError("one_prefix_method is false: the two sentences are not one beginning with two continuations")
    same = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), None)
    if same is None:
        raise ValueError(f"no word differs between {' '.join(good)!r} and {' '.join(bad)!r}")
    if not same:
        raise ValueError(f"the sentences differ from the first word on, so there is no prompt: {good[0]!r}")
    return " ".join(good[:same]), " " + (good[same].rstrip(".,;:!?") or good[same])
