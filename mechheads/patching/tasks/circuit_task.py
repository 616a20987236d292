"""The tasks on which circuits are looked for, as pairs of prompts in any model's tokens."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from mechheads.messages.arguments import check_at_least, check_known
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import logit_diff
from mechheads.model.model import Model
from mechheads.patching.tasks import (
    arithmetic,
    capitals,
    docstring,
    gendered_pronoun,
    greater_than,
    indirect_object,
    repeated_pattern,
)
from mechheads.patching.tasks.items import Item, Split, fitting
from mechheads.prompts.prompts import PromptPairs

Items = Callable[[Split, np.random.Generator], Iterator[Item]]


@dataclass(frozen=True)
class _Task:
    """Where a task is from, and what gives its items and its measure in a model's tokens."""

    source: str
    in_tokens_of: Callable[[Model], tuple[Items, Metric]]


def _by_logits(module: Any) -> _Task:
    """A task whose items are the same for all models, measured by the logit difference of the answers."""
    return _Task(module.SOURCE, lambda model: (module.items, logit_diff))


_TASKS: Mapping[str, _Task] = {
    "indirect_object": _by_logits(indirect_object),
    "greater_than": _Task(greater_than.SOURCE, greater_than.in_tokens_of),
    "gendered_pronoun": _by_logits(gendered_pronoun),
    "docstring": _by_logits(docstring),
    "arithmetic": _by_logits(arithmetic),
    "capitals": _by_logits(capitals),
    "repeated_pattern": _by_logits(repeated_pattern),
}
CIRCUIT_TASKS = tuple(_TASKS)
"""The names of the tasks."""
_DRAWN = 40
"""At most so many items are drawn for each that is asked for."""


@dataclass(frozen=True)
class CircuitTask:
    """A task in a model's tokens, from ``mh.patching.circuit_task``.

    Attributes:
        name, split: which task, and which half of its names, words and templates.
        pairs: clean prompts, the counterfactual of each as ``corrupted``, and both answers.
        metric: the measure of the paper: the logit difference of the two answers, for ``greater_than`` a difference of
            probabilities.
        dropped: how many items were drawn and left out, by why.
        source: the paper that the task is from.
    """

    name: str
    split: Split
    pairs: PromptPairs
    metric: Metric
    dropped: Mapping[str, int]
    source: str

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        out = "; ".join(f"{n} left out: {why}" for why, n in self.dropped.items())
        return f"<CircuitTask {self.name} ({self.split}), {len(self)} pairs{f'; {out}' if out else ''}>\n{self.pairs!r}"


def circuit_task(model: Model, name: str, n: int = 64, *, split: Split = "train", seed: int = 0) -> CircuitTask:
    """Pairs of prompts for one of the field's tasks, drawn so that they fit the model's tokenizer.

    Args:
        name: one of ``mh.patching.CIRCUIT_TASKS``: indirect_object, greater_than, gendered_pronoun, docstring,
            arithmetic, capitals and repeated_pattern (ABA or ABB).
        n: the number of pairs.
        split: ``"train"`` or ``"test"``, which share no names, words or numbers that decide an answer.
        seed: for drawing.

    Raises:
        ValueError: if there is no such task or split, the model has no tokenizer, or it can express fewer than 2 pairs.

    Warns:
        UserWarning: if there are fewer pairs than asked for.

    >>> task = mh.patching.circuit_task(model, "gendered_pronoun", 2)
    >>> print(task.pairs.clean[0])
    So Mark is a really great singer, isn't
    >>> effect = mh.activation_patch(model, task.pairs, metric=task.metric, heads="L23H4", progress=False)
    """
    check_at_least(1, n=n)
    check_known("name", name, CIRCUIT_TASKS)
    check_known("split", split, Split)
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to tokenise the prompts; give one: mh.wrap(model, tokenizer=...)")
    items, metric = _TASKS[name].in_tokens_of(model)
    found, dropped = fitting(model, islice(items(split, np.random.default_rng(seed)), _DRAWN * n), n)
    why = ", ".join(f"{count} left out because {reason}" for reason, count in dropped.items())
    if len(found) < min(n, 2):
        raise ValueError(f"name={name!r}: the model's tokenizer can express {len(found)} pairs ({why}); choose another")
    if len(found) < n:
        warnings.warn(f"{name} has {len(found)} pairs for this model instead of {n} ({why})", stacklevel=2)
    each = [one.item for one in found]
    pairs = PromptPairs(
        [item.clean for item in each],
        [item.corrupted for item in each],
        [one.answer for one in found],
        [one.wrong for one in found],
        cluster=[item.cluster for item in each],
    )
    return CircuitTask(name, split, pairs, metric, dict(dropped), _TASKS[name].source)
