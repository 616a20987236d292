"""``open_task``: a task by its name, or from a file that is recognised by its fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.files.text import parse_json, read_text
from mechheads.gating.tasks.shipped import load_task, relation_task, task_names
from mechheads.gating.tasks.task import Task
from mechheads.gating.tasks.task_files import read_blimp, read_commonsense_qa, read_gsm8k, read_task
from mechheads.labels.relations import Relation, relation_names
from mechheads.messages.suggest import did_you_mean

if TYPE_CHECKING:
    from mechheads.model.model import Model


def open_task(name_or_path: str | Path, *, model: Model | None = None, n: int | None = None, seed: int = 0) -> Task:
    """A task by its name, or from a file.

    ==============================  ============================================================================
    a name of ``load_task``         a task of the package, or one of its relations
    ``prompt``, ``target``          our own format, one object per line (``read_task``)
    ``sentence_good``               BLiMP; the target is the first word of the good sentence that differs
    ``question``, ``answerKey``     CommonsenseQA; also ``input`` with lettered options and ``output``
    ``question``, ``answer``        GSM8K; the target is the final number
    a relation                      a file that ``Relation.load`` reads, with few-shot templates
    ==============================  ============================================================================

    A file is recognised by the fields of its first object.

    Args:
        name_or_path: the name or the file.
        model: needed for ``aba_abb`` and for relations, whose prompts consist of words that are one token.
        n: the number of items, drawn at random; ``None`` for all.
        seed: for the items, and for what a task draws at random.

    Raises:
        ValueError: if there is no such name or file, a file is not a task, a model is needed and not given, or there
            are fewer than ``n`` items.

    >>> from mechheads.gating import open_task
    >>> len(open_task("syntax", n=5))
    5
    """
    if str(name_or_path) in task_names():
        return load_task(str(name_or_path), model=model, n=n, seed=seed)
    read = _reader(Path(name_or_path).expanduser(), str(name_or_path))
    if read is None:
        if model is None:
            raise ValueError(f"task {str(name_or_path)!r} is a relation and needs a model: open_task(..., model=model)")
        return relation_task(model, Relation.load(name_or_path), n=n, seed=seed)
    task = read(name_or_path, seed)
    if n is None:
        return task
    if not 1 <= n <= len(task):
        raise ValueError(f"n is {n}, but {name_or_path} has {len(task)} items; give 1 to {len(task)}, or None for all")
    return task.items(np.random.default_rng(seed).permutation(len(task))[:n].tolist())


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
    first = _first(file)
    if isinstance(first, list) or "pairs" in first:
        return None
    if "sentence_good" in first:
        return lambda path, seed: read_blimp(path)
    if "answerKey" in first or {"input", "output"} <= first.keys():
        return read_commonsense_qa
    if {"question", "answer"} <= first.keys():
        return read_gsm8k
    if {"prompt", "target"} <= first.keys():
        return lambda path, seed: read_task(path)
    raise ValueError(
        f"task: {file} is not recognised by its fields {', '.join(map(repr, first)) or '(none)'}; its objects must "
        'have "prompt" and "target", or be those of BLiMP ("sentence_good", "sentence_bad"), CommonsenseQA '
        '("question", "choices", "answerKey"), GSM8K ("question", "answer") or a relation ("name", "category", "pairs")'
    )


def _first(file: Path) -> Mapping[str, Any] | list[Any]:
    """The first object of a file of JSON lines or of a JSON list, or the JSON object that is the file."""
    text = read_text(file).strip()
    if not text:
        raise ValueError(f"task: {file} is empty; give one JSON object per line")
    lines = text.split("\n")
    whole = text.startswith("[") or lines[0].strip() == "{"
    content = parse_json(text if whole else lines[0], str(file))
    first = (content or [""])[0] if isinstance(content, list) else content
    if not isinstance(first, (dict, list)):
        raise ValueError(f"task: {file} holds {str(first)[:60]!r}; give one JSON object per line")
    return first
