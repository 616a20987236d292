"""Train a model to refuse through a few heads only."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.teaching.lessons import (
    REFUSAL,
    Frame,
    Kind,
    Lesson,
    Lessons,
    make_lessons,
    requests_to_teach,
)
from benchmarks.teaching.losses import Losses, Wanted
from benchmarks.teaching.upper_layers import Off, UpperLayers, Way
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta, Side
from mechheads.model.load import from_transformers
from mechheads.model.sources import DEFAULT_MODEL, load_pretrained
from mechheads.progress import Bar

_ROWS: dict[Kind, int] = {"refuse": 9, "answer": 12, "begun": 2}
"""Lessons of each kind in a step."""
_TOKENS: dict[Kind, int] = {"refuse": 7, "answer": 4, "begun": 6}
"""Tokens of an answer that are learnt in most steps: those that decide whether it refuses."""
_WHOLE = 0.15
"""The share of steps that learn whole answers."""
_QUERY = 0.3
"""The share of steps in the paper's template; the others are in the chat template."""
_HARDEST = 0.5
"""The share of steps that take the hardest third of a larger draw."""
_WITHOUT = 8, 5, 0.3
"""Harmful lessons without one of the heads: their number in a step, their tokens, and the weight of their loss."""
_WAYS: tuple[Way, ...] = "silent", "even", "untaught", "untaught"
_OTHERS_OFF = 0.3
"""The share of steps in which random untaught heads of the same layers are off."""
_WARM_UP = 15


class Round(NamedTuple):
    """A round of training: the seed of the order of its lessons, its number of steps, and Adam's learning rate."""

    seed: int
    steps: int
    lr: float


def teach_refusal(
    heads: Sequence[HeadId],
    requests: tuple[Sequence[str], Sequence[str]] | None = None,
    *,
    by: Round,
    start: Delta | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Delta:
    """A change of W_Q and W_O of some heads that makes the default model refuse harmful requests, trained with Adam.

    Every step learns refusals of harmful requests (cross entropy), and to answer harmless ones as the untrained model
    answers them, also when the answer begins like a refusal (KL divergence). After three tenths of the steps, each step
    also takes away one of the heads, in turn: it writes nothing, attends evenly, or is untrained again. Without it, the
    model should answer harmful requests as the untrained model does. So every head is needed, and none can replace
    another. In some steps, as many random heads of the same layers are taken away, which should change nothing.

    Lessons are in the chat template, in the paper's template, and in frames that try to mislead. They are the teaching
    sets of ``load_requests`` and the train part of ``"harmful"`` and ``"harmless"``; the test part is not used.
    The changes are float32.

    Args:
        heads: the heads to train; all other weights stay as they are.
        requests: requests to refuse, and requests to answer; by default, the package's.
        by: the round of training. The learning rate falls linearly to a twentieth.
        start: a change of the same heads to go on from; by default, none.
        dtype: what the model runs in. A processor without bfloat16 arithmetic is several times faster in float32.

    Raises:
        ValueError: if ``start`` changes other heads.
    """
    if start is not None and set(start.heads) != set(heads):
        raise ValueError(
            f"start changes {', '.join(map(str, start.heads))}, but heads are {', '.join(map(str, heads))}; "
            "give a delta of the same heads"
        )
    source = load_pretrained(None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False)
    untrained = from_transformers(source.model, source.tokenizer, source.name, revision=source.revision)
    if requests is None:
        requests = requests_to_teach("harmful"), requests_to_teach("harmless")
    lessons = make_lessons(untrained, *requests)
    model: Any = source.model
    layers = UpperLayers.of(model.to(dtype), heads, start)
    losses = Losses(layers, source.tokenizer, min(head.layer for head in heads))
    optimiser = torch.optim.Adam([weight for both in layers.change.values() for weight in both], betas=(0.9, 0.98))
    course = _Course(lessons, heads, model.config.num_attention_heads, Random(by.seed))
    for step in Bar(range(by.steps), desc="teaching", leave=False):
        for group in optimiser.param_groups:
            group["lr"] = by.lr * min(1, (step + 1) / _WARM_UP) * (1 - 0.95 * step / by.steps)
        optimiser.zero_grad()
        course.step(step, by.steps, losses)
        optimiser.step()
    rounds = [*([] if start is None else start.about["rounds"]), by._asdict()]
    about = {"model": DEFAULT_MODEL, "refusal": REFUSAL, "rounds": rounds}
    change: dict[HeadId, dict[Side, Tensor]] = {
        head: {"W_Q": w_q.detach().T.clone(), "W_O": w_o.detach().T.clone()}
        for head, (w_q, w_o) in sorted(layers.change.items())
    }
    return Delta(change, about)


class _Course:
    """What each step learns, drawn at random."""

    def __init__(self, lessons: Lessons, heads: Sequence[HeadId], n_heads: int, random: Random) -> None:
        self.lessons, self.heads, self.random = lessons, heads, random
        layers = sorted({head.layer for head in heads})
        self.others = [HeadId(layer, i) for layer in layers for i in range(n_heads) if HeadId(layer, i) not in heads]

    def step(self, step: int, steps: int, losses: Losses) -> None:
        """Add the gradient of one step."""
        frame: Frame = "query" if self.random.random() < _QUERY else "chat"
        whole = self.random.random() < _WHOLE
        wanted = [
            Wanted(lesson, len(lesson.answer) if whole else min(len(lesson.answer), _TOKENS[kind]), kind != "refuse")
            for kind, rows in _ROWS.items()
            for lesson in self._draw(self.lessons.get((kind, frame), []), rows)
        ]
        off: Off = ()
        if step >= 0.15 * steps and self.random.random() < _OTHERS_OFF:
            several = self.random.sample(self.others, min(len(self.heads), len(self.others)))
            off = [(self.random.choice(_WAYS[:2]), head) for head in several]
        each = losses.each(wanted, off)
        each.mean().backward()
        for one, loss in zip(wanted, each.tolist(), strict=True):
            one.lesson.hard = loss
        if step >= 0.3 * steps:
            rows, tokens, weight = _WITHOUT
            pool = self.lessons["refuse", frame]
            some = self.random.sample(pool, min(rows, len(pool)))
            without = [Wanted(lesson, min(len(lesson.answer), tokens), True) for lesson in some]
            head = self.heads[step % len(self.heads)]
            (weight * losses.each(without, [(self.random.choice(_WAYS), head)]).mean()).backward()

    def _draw(self, lessons: Sequence[Lesson], n: int) -> list[Lesson]:
        drawn = self.random.sample(lessons, min(3 * n, len(lessons)))
        if self.random.random() < _HARDEST:
            drawn.sort(key=lambda lesson: -lesson.hard)
        return drawn[:n]
