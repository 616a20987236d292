"""How far answers are from what they should be: a refusal, or the untrained model's own answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.teaching.lessons import Frame, Lesson, shared_beginning
from benchmarks.teaching.upper_layers import Off, UpperLayers

_AT_ONCE = 32


@dataclass(frozen=True)
class Wanted:
    """What to learn from a lesson.

    Attributes:
        tokens: how many of the answer's tokens, from the first.
        keep: whether to predict them as the untrained model does, or as they are.
    """

    lesson: Lesson
    tokens: int
    keep: bool


class Losses:
    """Losses of lessons under a model with changed heads.

    Args:
        layers: the model and the changes.
        lowest: the lowest layer with a changed head.
    """

    def __init__(self, layers: UpperLayers, tokenizer: Any, lowest: int) -> None:
        self.layers, self.lowest = layers, lowest
        self.top = layers.model.config.num_hidden_layers
        self._embedded: dict[Frame, Tensor] = {}
        self._shared: dict[Frame, Tensor] = {}
        with torch.no_grad():
            for frame in ("chat", "query"):
                first = layers.embed(torch.tensor([shared_beginning(tokenizer, frame)]))
                self._embedded[frame] = first
                self._shared[frame], _ = layers.run(first, first[:, :1], range(lowest))

    def each(self, wanted: Sequence[Wanted], off: Off = ()) -> Float[Tensor, " lesson"]:
        """The loss of each lesson, per token; all lessons are of one frame.

        It is the cross entropy of the answer, or for ``keep`` the divergence KL(untrained || trained).
        """
        frame = wanted[0].lesson.frame
        self._prepare([each.lesson for each in wanted], frame)
        lengths = [len(each.lesson.prompt) + each.tokens - 1 for each in wanted]
        width = self._shared[frame].shape[-1]
        rows = torch.zeros(len(wanted), max(lengths), width, dtype=self._shared[frame].dtype)
        for row, each, length in zip(rows, wanted, lengths, strict=True):
            row[:length] = _there(each.lesson.lower)[:length]
        layers = range(self.lowest, self.top)
        _, final = self.layers.run(self._shared[frame], rows, layers, changed=True, off=off)
        at = [
            (i, length - n)
            for i, (each, length) in enumerate(zip(wanted, lengths, strict=True))
            for n in range(each.tokens, 0, -1)
        ]
        row, position = torch.tensor(at).T
        found = self.layers.log_probs(final[row, position])
        answers = torch.tensor([token for each in wanted for token in each.lesson.answer[: each.tokens]])
        losses = -found.gather(1, answers[:, None])[:, 0]
        kept = torch.tensor([each.keep for each in wanted])[row]
        if kept.any():
            with torch.no_grad():
                hidden = [_there(each.lesson.before)[: each.tokens] for each in wanted if each.keep]
                before = self.layers.log_probs(torch.cat(hidden))
            losses = losses.masked_scatter(kept, (before.exp() * (before - found[kept])).sum(-1))
        tokens = torch.tensor([each.tokens for each in wanted])
        return torch.zeros(len(wanted)).index_add(0, row, losses) / tokens

    def _prepare(self, lessons: Sequence[Lesson], frame: Frame) -> None:
        """Compute what is kept of lessons that are seen for the first time."""
        new = [lesson for lesson in dict.fromkeys(lessons) if lesson.lower is None]
        for some in (new[i : i + _AT_ONCE] for i in range(0, len(new), _AT_ONCE)):
            ids = [torch.tensor(lesson.prompt + lesson.answer) for lesson in some]
            with torch.no_grad():
                rows = self.layers.embed(torch.nn.utils.rnn.pad_sequence(ids, batch_first=True))
                _, lower = self.layers.run(self._embedded[frame], rows, range(self.lowest))
                _, final = self.layers.run(self._shared[frame], lower, range(self.lowest, self.top))
            for i, lesson in enumerate(some):
                start, end = len(lesson.prompt), len(lesson.prompt) + len(lesson.answer)
                lesson.lower, lesson.before = lower[i, :end].clone(), final[i, start - 1 : end - 1].clone()


def _there(kept: Tensor | None) -> Tensor:
    if kept is None:
        raise RuntimeError("the lesson was not prepared")
    return kept
