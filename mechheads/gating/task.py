"""A task (prompts, each with a target that should follow it), and its tokens for one model."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechheads.io.text import check_unicode, entries, labels, shown
from mechheads.messages.arguments import check_arguments, check_at_least
from mechheads.messages.notices import Wrapped
from mechheads.model.model import Model
from mechheads.prompts.chats import is_chat
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.tokens import Unpadded, check_padding, encode, read_prompts

TextOrIds = str | Sequence[int]
_SHOWN = 160
"""The number of characters of a source that are shown."""


@dataclass(frozen=True, repr=False)
class Task(Wrapped):
    """Prompts and the targets that should follow them.

    Args:
        prompts: texts, which the model's own tokenizer tokenises, or lists of token ids.
        targets: the text or ids that should follow each prompt, of any length, with the leading space (``" Paris"``).
        name: the name in results and figures.
        source: where the task comes from.
        cluster: a label for each item. Items with the same label (an entity, a template) are not independent:
            intervals are computed over clusters, and ``split`` does not divide them. By default every item is its own
            cluster.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"], name="capitals")
    >>> len(task), task.tokens(model).lengths.tolist()
    (2, [6, 6])
    """

    prompts: Sequence[TextOrIds]
    targets: Sequence[TextOrIds]
    name: str = "task"
    source: str = ""
    cluster: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "targets"):
            items = enumerate(read_prompts(getattr(self, name), name))
            object.__setattr__(self, name, tuple(_checked(item, f"{name}[{index}]") for index, item in items))
        check_arguments(type(self), {"name": self.name, "source": self.source})
        if self.cluster is not None:
            object.__setattr__(self, "cluster", tuple(labels(self.cluster)))
        if not len(self.prompts):
            raise ValueError("prompts is empty; give at least one prompt and its target")
        for name, column in (("targets", self.targets), ("cluster", self.cluster)):
            if column is not None and len(column) != len(self.prompts):
                raise ValueError(f"{name} has {len(column)} entries for {len(self.prompts)} prompts; give one for each")

    def __len__(self) -> int:
        return len(self.prompts)

    def __repr__(self) -> str:
        n = len(self)
        clusters = "" if self.cluster is None else f" in {len(set(self.cluster))} clusters"
        first = f"{shown(self.prompts[0])} -> {shown(self.targets[0])}"
        source = f"\n  {textwrap.shorten(self.source, _SHOWN, placeholder='...')}" if self.source else ""
        return f"<Task {self.name!r}: {n} item{'s' * (n != 1)}{clusters}\n  {first}{', ...' * (n > 1)}{source}>"

    def items(self, which: Sequence[int]) -> Task:
        """A task of the items with these indices, in this order."""
        if not len(entries(which, "which", "indices")) or any(i not in range(len(self)) for i in which):
            raise ValueError(f"which is {shown(which)}; give indices of items, from 0 to {len(self) - 1}")
        cluster = None if self.cluster is None else [self.cluster[i] for i in which]
        return replace(
            self, prompts=[self.prompts[i] for i in which], targets=[self.targets[i] for i in which], cluster=cluster
        )

    def split(self, *fractions: float, seed: int = 0) -> tuple[Task, ...]:
        """Several tasks, each with a random part of the items; a cluster is never split.

        Args:
            fractions: the share of the clusters in each part. If only one is given, the second part is the rest.
            seed: the seed of the order in which clusters are assigned.

        Returns:
            One task for each part, with its items in the order of this task.

        >>> train, test = mh.Task([f"{i} + 1 =" for i in range(10)], [f" {i + 1}" for i in range(10)]).split(0.8)
        >>> len(train), len(test)
        (8, 2)
        """
        check_at_least(0, seed=seed)
        numbers = all(isinstance(share, Real) for share in fractions)
        shares = (*fractions, 1 - fractions[0]) if numbers and len(fractions) == 1 else fractions
        if not (numbers and shares) or min(shares) < 0 or not abs(sum(shares) - 1) < 1e-6:
            raise ValueError(f"fractions are {fractions}; give shares that add up to 1, such as split(0.8, 0.2)")
        clusters = [str(index) for index in range(len(self))] if self.cluster is None else list(self.cluster)
        names = list(dict.fromkeys(clusters))
        order = np.random.default_rng(seed).permutation(len(names))
        ends = np.rint(np.cumsum(shares) * len(names)).astype(int)
        starts = [0, *ends[:-1]]
        for part, (start, end) in enumerate(zip(starts, ends, strict=True)):
            if end <= start:
                raise ValueError(
                    f"part {part} of the split {tuple(round(share, 6) for share in shares)} is empty: the task has "
                    f"{len(self)} items in {len(names)} clusters; give more items or a larger share"
                )
        part_of = {names[i]: int(np.searchsorted(ends, place, "right")) for place, i in enumerate(order)}
        return tuple(
            self.items([index for index, label in enumerate(clusters) if part_of[label] == part])
            for part in range(len(shares))
        )

    def tokens(self, model: Model) -> TaskTokens:
        """The tokens of the items for a model, prompt and target tokenised together.

        An item is usable if the joint tokens begin with the tokens of the prompt alone; the other tokens are the
        target's. Other items are rejected, with the reason. For example, if a prompt ends in a space, the first
        token of the target may contain this space, so no position of the prompt predicts the target.

        >>> tokens = mh.Task(["One, two,", "One, two, "], [" three", "three"]).tokens(model)
        >>> len(tokens), list(tokens.rejected)
        (1, [1])
        """
        for name, items in (("prompt", self.prompts), ("target", self.targets)):
            rows_of_ids = {index: item for index, item in enumerate(items) if not isinstance(item, (str, Unpadded))}
            check_padding(rows_of_ids, model.tokenizer, name)
        rows, indices, rejected = [], [], {}
        for index, (prompt, target) in enumerate(zip(self.prompts, self.targets, strict=True)):
            try:
                rows.append(_join(prompt, target, index, model))
                indices.append(index)
            except ValueError as error:
                rejected[index] = str(error)
        if not rows:
            raise ValueError(f"task {self.name!r}: none of its {len(self)} items can be used; item 0: {rejected[0]}")
        ids = torch.zeros(len(rows), max(len(row) for row, _ in rows), dtype=torch.long, device=model.device)
        is_target = torch.zeros_like(ids, dtype=torch.bool)
        for index, (row, start) in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row, device=model.device)
            is_target[index, start : len(row)] = True
        clusters = range(len(self)) if self.cluster is None else self.cluster
        return TaskTokens(
            ids=ids,
            lengths=torch.tensor([len(row) for row, _ in rows], device=model.device),
            is_target=is_target,
            indices=tuple(indices),
            rejected=rejected,
            cluster=tuple(str(clusters[index]) for index in indices),
        )


@dataclass(frozen=True, eq=False, repr=False)
class TaskTokens(Wrapped):
    """The items of a task that can be used with one model, as tokens.

    Attributes:
        ids: prompt and target [item, pos], padded on the right.
        lengths: the number of real tokens of each item [item].
        is_target: whether each token belongs to the target [item, pos].
        indices: the index of each item in the task.
        rejected: the reason for each item that is left out, by its index in the task.
        cluster: the label of each item's cluster.
    """

    ids: Int[Tensor, "item pos"]
    lengths: Int[Tensor, " item"]
    is_target: Bool[Tensor, "item pos"]
    indices: tuple[int, ...]
    rejected: Mapping[int, str]
    cluster: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        n, pos = self.ids.shape
        rejected = f", {len(self.rejected)} rejected" if self.rejected else ""
        return f"<TaskTokens of {n} item{'s' * (n != 1)}, up to {pos} each{rejected}>"

    def items(self, which: Int[Tensor, " some"]) -> TaskTokens:
        """The tokens of some of the items, padded to the longest of them."""
        at, width = which.tolist(), int(self.lengths[which].max())
        return replace(
            self,
            ids=self.ids[which, :width],
            lengths=self.lengths[which],
            is_target=self.is_target[which, :width],
            indices=tuple(self.indices[i] for i in at),
            cluster=tuple(self.cluster[i] for i in at),
        )

    def to(self, device: torch.device) -> TaskTokens:
        """The same items on a device."""
        ids, lengths, is_target = (tensor.to(device) for tensor in (self.ids, self.lengths, self.is_target))
        return replace(self, ids=ids, lengths=lengths, is_target=is_target)

    def fingerprint(self) -> str:
        """A short hash of ids, targets and clusters: equal items have equal fingerprints."""
        digest = hashlib.sha256()
        for row, length, targets in zip(
            self.ids.tolist(), self.lengths.tolist(), self.is_target.sum(1).tolist(), strict=True
        ):
            digest.update(repr((row[:length], targets)).encode())
        digest.update(repr(self.cluster).encode())
        return digest.hexdigest()[:16]


def _checked(item: Any, where: str) -> str | tuple[int, ...]:
    """A text or a tuple of ids, checked not to be empty."""
    if is_chat(item):
        raise ValueError(f"{where} is {shown(item)}; each must be a text or a list of token ids")
    read: Any = check_unicode(item, where) if isinstance(item, str) else item
    if not isinstance(item, (str, Unpadded)):
        read = tuple(item)
    if not read:
        raise ValueError(f"{where} is empty; prompt and target need at least one token each")
    return read


def _join(prompt: TextOrIds, target: TextOrIds, index: int, model: Model) -> tuple[list[int], int]:
    """The tokens of prompt and target together, and the index of the target's first token."""
    if isinstance(prompt, str) != isinstance(target, str):
        raise ValueError("one of prompt and target is a text and the other token ids; give both as text or both as ids")
    if not (isinstance(prompt, str) and isinstance(target, str)):
        return encode([*prompt, *target], index, model)[0], len(prompt)  # type: ignore[list-item]
    alone = encode(prompt, index, model)[0]
    joint = encode(prompt + target, index, model)[0]
    texts = token_strings(joint, model.tokenizer)
    if joint[: len(alone)] != alone:
        first = next((i for i, (a, b) in enumerate(zip(joint, alone, strict=False)) if a != b), len(joint))
        raise ValueError(
            f"a token spans prompt and target: the prompt {prompt!r} alone has the tokens "
            f"{token_strings(alone, model.tokenizer)[first:]}, but with its target {target!r} it has {texts[first:]}; "
            "move the space between them to the target"
        )
    if len(joint) == len(alone):
        raise ValueError(f"the target {target!r} has no tokens of its own after the prompt {prompt!r}")
    return joint, len(alone)


@dataclass(frozen=True)
class Question:
    """A question, its answer without the leading space, its cluster, and its kind, from which its example is drawn."""

    text: str
    answer: str
    cluster: str
    kind: str = ""


def lettered(question: str, options: Sequence[str], rng: np.random.Generator) -> Question:
    """A question with lettered options in random order; the answer is the letter of the first of ``options``."""
    order = rng.permutation(len(options))
    lines = [f"{letter}: {options[i]}" for letter, i in zip(ascii_uppercase, order, strict=False)]
    return Question("\n".join([question, *lines]), ascii_uppercase[int(np.flatnonzero(order == 0)[0])], question)


def question_task(
    questions: Sequence[Question], name: str, source: str, *, rng: np.random.Generator, n: int | None = None
) -> Task:
    """A task of questions in random order, each after another of its kind and of a different cluster."""
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
    selected = [questions[i] for i in rng.permutation(len(questions))[:n]]
    examples = [_other(question, kinds[question.kind], rng) for question in selected]
    return Task(
        [f"{_ask(one)} {one.answer}\n\n{_ask(question)}" for one, question in zip(examples, selected, strict=True)],
        [f" {question.answer}" for question in selected],
        name=name,
        source=source,
        cluster=[question.cluster for question in selected],
    )


def some_items(task: Task, n: int | None, seed: int) -> Task:
    """``n`` items of a task, or all for None, in random order."""
    check_n(n, len(task), task.name)
    return task.items(np.random.default_rng(seed).permutation(len(task))[:n].tolist())


def check_n(n: int | None, most: int, name: str) -> None:
    """Check that a task has ``n`` items."""
    if n is not None and not 1 <= n <= most:
        raise ValueError(f"n is {n}, but task {name!r} has {most} items; give 1 to {most}, or None for all")


def _ask(question: Question) -> str:
    return f"Question: {question.text}\nAnswer:"


def _other(question: Question, members: Sequence[Question], rng: np.random.Generator) -> Question:
    """A random question of another cluster; there is at least one."""
    while (other := members[int(rng.integers(len(members)))]).cluster == question.cluster:
        pass
    return other
