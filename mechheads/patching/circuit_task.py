"""The tasks on which circuits are looked for, as pairs of prompts in any model's tokens."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mechheads.messages.arguments import check_at_least, check_known
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import logit_diff
from mechheads.model.model import Model
from mechheads.patching import task_items
from mechheads.patching.task_items import Item, Split, greater_than_in_tokens_of, next_token
from mechheads.prompts.prompts import PromptPairs, join_clusters
from mechheads.prompts.tokens import Reader, encode

Items = Callable[[Split, np.random.Generator], Iterator[Item]]

_SOURCES = {
    "indirect_object": "Wang et al. 2022, Interpretability in the Wild, arXiv 2211.00593",
    "greater_than": "Hanna et al. 2023, How does GPT-2 compute greater-than?, arXiv 2305.00586",
    "gendered_pronoun": (
        "Mathwin et al. 2023, Identifying a Preliminary Circuit for Predicting Gendered Pronouns in GPT-2 Small"
    ),
    "docstring": "Heimersheim and Janiak 2023, A circuit for Python docstrings in a 4-layer attention-only transformer",
    "arithmetic": "Nikankin et al. 2024, Arithmetic Without Algorithms, arXiv 2410.21272; Mueller et al. 2025 (MIB)",
    "capitals": "mechheads' relation country_to_capital",
    "repeated_pattern": (
        "Yang et al. 2025, Emergent Symbolic Mechanisms Support Abstract Reasoning in LLMs, arXiv 2502.20332"
    ),
}
"""Where each task is from."""
CIRCUIT_TASKS = tuple(_SOURCES)
"""The names of the tasks."""
NOT_ONE_TOKEN = "an answer is not one token"
NOT_ALIGNED = "the two prompts differ in their number of tokens"
TOO_LONG = "a prompt is longer than the model's context"
TWICE = "drawn before"
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
    items, metric = _in_tokens_of(model, name)
    found, dropped = fitting(model, islice(items(split, np.random.default_rng(seed)), _DRAWN * n), n)
    why = ", ".join(f"{count} left out because {reason}" for reason, count in dropped.items())
    if len(found) < min(n, 2):
        raise ValueError(f"name={name!r}: the model's tokenizer can express {len(found)} pairs ({why}); choose another")
    if len(found) < n:
        warnings.warn(f"{name} has {len(found)} pairs for this model instead of {n} ({why})", stacklevel=2)
    each = [one.item for one in found]
    clean, corrupted = [item.clean for item in each], [item.corrupted for item in each]
    pairs = PromptPairs(
        clean,
        corrupted,
        [one.answer for one in found],
        [one.wrong for one in found],
        cluster=join_clusters([item.cluster for item in each], clean, corrupted),
    )
    return CircuitTask(name, split, pairs, metric, dict(dropped), _SOURCES[name])


def _in_tokens_of(model: Model, name: str) -> tuple[Items, Metric]:
    """The items of a task and its measure: the logit difference of the answers, unless its paper has another."""
    if name == "greater_than":
        return greater_than_in_tokens_of(model)
    return getattr(task_items, name), logit_diff


@dataclass(frozen=True)
class Fitting:
    """An item in a model's tokens: the ids of its answers."""

    item: Item
    answer: int
    wrong: int


def fitting(model: Reader, items: Iterable[Item], n: int) -> tuple[list[Fitting], Counter[str]]:
    """The first ``n`` items that a model can express, and how many others were drawn, by what is wrong with them."""
    found: dict[tuple[str, str], Fitting] = {}
    dropped: Counter[str] = Counter()
    for item in items:
        key = item.clean, item.corrupted
        fitted = TWICE if key in found else _fitted(model, item)
        if isinstance(fitted, str):
            dropped[fitted] += 1
        else:
            found[key] = fitted
        if len(found) == n:
            break
    return list(found.values()), dropped


def _fitted(model: Reader, item: Item) -> Fitting | str:
    """An item in a model's tokens, or what is wrong with it."""
    try:
        answer, wrong = (next_token(model, item.clean, text) for text in (item.answer, item.wrong))
        n_clean, n_corrupted = (len(encode(text, 0, model)[0]) for text in (item.clean, item.corrupted))
    except ValueError:
        return TOO_LONG
    if answer is None or wrong is None or answer == wrong:
        return NOT_ONE_TOKEN
    return Fitting(item, answer, wrong) if n_clean == n_corrupted else NOT_ALIGNED
