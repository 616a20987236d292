"""Questions as prompts: "Question: ... Answer:" after one worked example of the same kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase

import numpy as np

from mechheads.gating.tasks.task import Task


@dataclass(frozen=True)
class Question:
    """A question and its answer.

    Attributes:
        text: the question, which comes after "Question:".
        answer: what should follow "Answer:", without the leading space.
        cluster: questions with the same cluster are not independent, and are not each other's worked examples.
        kind: a label; the worked example of a question has the same kind.
    """

    text: str
    answer: str
    cluster: str
    kind: str = ""


def lettered(question: str, options: Sequence[str], rng: np.random.Generator) -> Question:
    """A question with lettered options in random order; the right one is given first, its letter is the answer."""
    order = rng.permutation(len(options))
    lines = [f"{letter}: {options[i]}" for letter, i in zip(ascii_uppercase, order, strict=False)]
    return Question("\n".join([question, *lines]), ascii_uppercase[int(np.flatnonzero(order == 0)[0])], question)


def question_task(
    questions: Sequence[Question], name: str, source: str, *, rng: np.random.Generator, n: int | None = None
) -> Task:
    """A task of questions in random order, each after a worked example; the target is the answer alone.

    The example is another random question of the same kind and of a different cluster.
    """
    check_n(n, len(questions), name)
    kinds: dict[str, list[Question]] = {}
    for question in questions:
        kinds.setdefault(question.kind, []).append(question)
    for kind, members in kinds.items():
        if len({question.cluster for question in members}) < 2:
            which = f" of the kind {kind!r}" if kind else ""
            raise ValueError(
                f"task {name!r} has no two different questions{which}; each needs another as its worked example"
            )
    asked = [questions[i] for i in rng.permutation(len(questions))[:n]]
    examples = [_other(question, kinds[question.kind], rng) for question in asked]
    return Task(
        [f"{_ask(one)} {one.answer}\n\n{_ask(question)}" for one, question in zip(examples, asked, strict=True)],
        [f" {question.answer}" for question in asked],
        name=name,
        source=source,
        cluster=[question.cluster for question in asked],
    )


def some_items(task: Task, n: int | None, seed: int) -> Task:
    """``n`` items of a task, or all for None, in random order."""
    check_n(n, len(task), task.name)
    return task.items(np.random.default_rng(seed).permutation(len(task))[:n].tolist())


def check_n(n: int | None, most: int, name: str) -> None:
    """Check that a task can give ``n`` items."""
    if n is not None and not 1 <= n <= most:
        raise ValueError(f"n is {n}, but task {name!r} has {most} items; give 1 to {most}, or None for all")


def _ask(question: Question) -> str:
    return f"Question: {question.text}\nAnswer:"


def _other(question: Question, members: Sequence[Question], rng: np.random.Generator) -> Question:
    """A random question of another cluster; there is at least one."""
    while (other := members[int(rng.integers(len(members)))]).cluster == question.cluster:
        pass
    return other
