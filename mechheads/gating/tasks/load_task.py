"""``load_task``: a task by its name, from a relation, or from the columns of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mechheads.gating.tasks.questions import some_items
from mechheads.gating.tasks.shipped import relation_task, shipped_task, task_names
from mechheads.gating.tasks.task import Task
from mechheads.io.rows import Table, columns_called
from mechheads.labels.relations import Relation, relation_names
from mechheads.messages.arguments import did_you_mean
from mechheads.model.model import Model


def load_task(
    source: str | Path | Relation,
    *,
    prompt: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    model: Model | None = None,
    n: int | None = None,
    seed: int = 0,
) -> Task:
    """A task by its name, from a relation, or from the columns of a file.

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

    The first four ask "Question: ... Answer:" after one worked example of the same kind, drawn for each question. So do
    ``mh.gating.commonsense_qa`` and ``mh.gating.gsm8k``, which read published files, as ``mh.gating.blimp`` does.

    Args:
        source: a name; a ``Relation`` with few-shot templates; or a file that ``mechheads.io.rows`` reads.
        prompt, target: the columns of a file that hold the prompts, and the texts that follow them as they are written,
            with their leading space if they have one.
        cluster: the column of a file with the label of each item's cluster, if there is one.
        model: needed for ``aba_abb`` and for relations, whose prompts consist of words that are one token.
        n: the number of items, drawn at random; ``None`` for all.
        seed: for the items and their order, the worked examples and the order of options.

    Returns:
        The task. Of a file, it says how many rows were taken, and which columns were not used.

    Raises:
        ValueError: if there is no such name or file, a column is not given or not there, a cell is no text, a model is
            needed and not given, or there are fewer than ``n`` items.

    >>> task = mh.gating.load_task("syntax", n=2)
    >>> print(task.prompts[0] + task.targets[0])
    Question: Which word fills the gap, "is" or "are"? The doors of the shop ___ open.
    Answer: are
    <BLANKLINE>
    Question: Which word fills the gap, "is" or "are"? The cat that chased the birds ___ asleep.
    Answer: is
    """
    if isinstance(source, Relation):
        if model is None:
            raise ValueError(f"relation {source.name!r} needs a model as a task: load_task(..., model=model)")
        return relation_task(model, source, n=n, seed=seed)
    if not isinstance(source, (str, Path)):
        raise ValueError(f"the task is {source!r}; give its name, a file or a Relation, or mh.Task(prompts, targets)")
    if str(source) in task_names():
        return shipped_task(str(source), model, n, seed)
    if not os.path.isfile(file := Path(source).expanduser()):  # Path.is_file raises for a name that is too long
        known = task_names()
        raise ValueError(
            f"task {str(source)!r} is neither a file nor one of {', '.join(known)}.{did_you_mean(str(source), known)}"
        )
    call = f"load_task({file.name!r}, prompt=..., target=...)"
    label: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
    found, told = Table.of(file).texts_of(call, prompt=prompt, target=target, **label)
    task = Task(found["prompt"], found["target"], name=file.stem, source=told, cluster=found.get("cluster"))
    return task if n is None else some_items(task, n, seed)


def task_of(name_or_file: str | Path, *, model: Model | None = None, n: int | None = None, seed: int = 0) -> Task:
    """A task by its name, or from a file whose columns are called prompt, target and, if there is one, cluster."""
    name = str(name_or_file)
    columns = {} if name in task_names() else columns_called(name, ("prompt", "target"), ("cluster",))
    return load_task(name_or_file, **columns, model=model, n=n, seed=seed)


def needs_model(name: str | Path) -> bool:
    """Whether a task can be opened only with a model."""
    return str(name) in ("aba_abb", "capitals", *relation_names())
