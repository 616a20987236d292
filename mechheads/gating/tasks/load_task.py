"""``load_task``: a task by its name, or from a file that is recognised by its fields."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from mechheads.files.rows import read_rows
from mechheads.gating.tasks.questions import some_items
from mechheads.gating.tasks.shipped import relation_task, shipped_task, task_names
from mechheads.gating.tasks.task import Task
from mechheads.gating.tasks.task_files import (
    QUESTIONS,
    read_blimp,
    read_commonsense_qa,
    read_gsm8k,
    read_prompts,
    read_questions,
    sound,
)
from mechheads.labels.relation_files import is_relation
from mechheads.labels.relations import Relation, relation_names
from mechheads.messages.arguments import did_you_mean
from mechheads.model.model import Model


def load_task(name_or_path: str | Path, *, model: Model | None = None, n: int | None = None, seed: int = 0) -> Task:
    """A task by its name, or from a file.

    The tasks of the package are:

    ======================  ====================================================================================
    ``syntax``              344 questions about English forms and agreement; half of them ask which of two words
                            fills the gap of a sentence. Cluster: the word, or the two sentences of a pair.
    ``common_sense``        327 everyday questions with five lettered options; the target is the letter.
    ``common_sense_open``   the questions of ``common_sense`` that can be asked without options; the target is the text
                            of the right option. For small models: the default model is no better than chance at
                            letters, but prefers the right text in two of three questions.
    ``math``                arithmetic word problems (200 unless ``n`` is given); the target is the number.
                            Cluster: the story. Too hard for the default model, which guesses.
    ``aba_abb``             word patterns (200 unless ``n`` is given).
    ``country_to_capital``  or any other name in ``mh.labels.relation_names()``: the targets of a relation after worked
                            examples. ``capitals`` is short for ``country_to_capital``.
    ======================  ====================================================================================

    The first four ask "Question: ... Answer:" after one worked example of the same kind, drawn for each question.

    A file (JSONL, JSON, CSV or Parquet) is recognised by the fields of its first object:

    ==============================  ============================================================================
    ``prompt``, ``target``          our own format; also ``prompt`` and ``answer`` or ``completion``
    ``sentence_good``               BLiMP; the target is the first word of the good sentence that differs
    ``question``, ``answerKey``     CommonsenseQA; also ``input`` with lettered options and ``output``
    ``question``, ``answer``        GSM8K, if the answer ends in ``#### 18``; the target is the final number
    ``input``, ``output``           words or questions, each after a worked example; also ``input`` and ``target``
                                    (BIG-bench), ``question`` and ``answer`` or ``answers``, ``instruction`` and
                                    ``output`` or ``response``, and lists of two texts. ``system``, ``instruction``,
                                    ``context`` and ``passage`` are part of the question
    a relation                      an object that ``Relation.load`` reads, with few-shot templates
    ==============================  ============================================================================

    Up to a tenth of its items are left out, with a warning, if they are empty, repeat the prompt, or do not fit the
    model that is given. A column that may say what is asked and is not read is told by a warning that names it.

    Args:
        name_or_path: the name or the file.
        model: needed for ``aba_abb`` and for relations, whose prompts consist of words that are one token.
        n: the number of items, drawn at random; ``None`` for all.
        seed: for the items and their order, the worked examples and the order of options.

    Raises:
        ValueError: if there is no such name or file, a file is not a task, a model is needed and not given, or there
            are fewer than ``n`` items.

    >>> task = mh.gating.load_task("syntax", n=2)
    >>> print(task.prompts[0] + task.targets[0])
    Question: Which word fills the gap, "is" or "are"? The doors of the shop ___ open.
    Answer: are
    <BLANKLINE>
    Question: Which word fills the gap, "is" or "are"? The cat that chased the birds ___ asleep.
    Answer: is
    """
    if not isinstance(name_or_path, (str, Path)):
        raise ValueError(f"the task is {name_or_path!r}; give the name of a task, or the path of a file")
    if str(name_or_path) in task_names():
        return shipped_task(str(name_or_path), model, n, seed)
    read = _reader(Path(name_or_path).expanduser(), str(name_or_path))
    if read is None:
        if model is None:
            raise ValueError(f"task {str(name_or_path)!r} is a relation and needs a model: load_task(..., model=model)")
        return relation_task(model, Relation.load(name_or_path), n=n, seed=seed)
    task = read(name_or_path, seed)
    if model is not None and (rejected := task.tokens(model).rejected):
        kept = [index for index in range(len(task)) if index not in rejected]
        task = task.items(sound(kept, [f"item {i}: {why}" for i, why in rejected.items()], str(name_or_path)))
    return task if n is None else some_items(task, n, seed)


def needs_model(name_or_path: str | Path) -> bool:
    """Whether a task can be opened only with a model.

    Raises:
        ValueError: if there is no such task.
    """
    name = str(name_or_path)
    if name in task_names():
        return name in ("aba_abb", "capitals", *relation_names())
    return _reader(Path(name).expanduser(), name) is None


def _reader(file: Path, name: str) -> Callable[[str | Path, int], Task] | None:
    """What reads a file as a task; None for a relation, which needs a model.

    Raises:
        ValueError: if there is no such file, or it is not a task.
    """
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        known = task_names()
        raise ValueError(f"task {name!r} is neither a file nor one of {', '.join(known)}.{did_you_mean(name, known)}")
    rows = read_rows(file)
    if not rows:
        raise ValueError(f"task: {file} is empty; give one JSON object per line")
    first = rows[0][1]
    if isinstance(first, list):
        return read_questions
    if not isinstance(first, dict):
        raise ValueError(f"task: {file} holds {str(first)[:60]!r}; give one JSON object per line")
    if is_relation(first):
        return None
    if "sentence_good" in first:
        return lambda path, seed: read_blimp(path)
    if "answerKey" in first or ("output" in first and re.search(r"\n\w{1,2}: ", str(first.get("input")))):
        return read_commonsense_qa
    if "question" in first and re.search(r"####\s*\S+\s*$", str(first.get("answer"))):
        return read_gsm8k
    if any(set(keys) <= first.keys() for keys in QUESTIONS):
        return read_questions
    for target in ("target", "answer", "completion"):
        if {"prompt", target} <= first.keys():
            return lambda path, seed, target=target: read_prompts(path, target)
    raise ValueError(
        f"task: {file} is not recognised by its fields {', '.join(map(repr, first)) or '(none)'}; its objects must "
        'have "prompt" and "target", "input" and "output", or "question" and "answer", or be those of BLiMP '
        '("sentence_good", "sentence_bad"), CommonsenseQA ("question", "choices", "answerKey"), GSM8K or a relation '
        '("name", "category", "pairs")'
    )
