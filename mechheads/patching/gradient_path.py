"""Integrated gradients: the mean gradient at points between the embeddings of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.runs.head_cache import HeadCache


@dataclass(frozen=True)
class Path:
    """Points between the embeddings of two runs.

    Attributes:
        start, end: the residual stream before the first block, of the two runs.
        steps: the number of points.
    """

    start: Float[Tensor, "prompt pos d_model"]
    end: Float[Tensor, "prompt pos d_model"]
    steps: int

    @classmethod
    def between(cls, base: HeadCache, source: HeadCache, steps: int) -> Path:
        """From a run to another over prompts of the same lengths."""
        return cls(_embeddings(base), _embeddings(source), steps)

    def points(self, rows: slice) -> Iterator[Float[Tensor, "prompt pos d_model"]]:
        """The residual stream of some prompts at each point, in the middle of equal parts of the way."""
        for k in range(self.steps):
            yield torch.lerp(self.start[rows], self.end[rows], (k + 0.5) / self.steps)


def _embeddings(run: HeadCache) -> Float[Tensor, "prompt pos d_model"]:
    """The residual stream before the first block."""
    model, kept = run.need_model(), list[Tensor]()

    def keep(value: Tensor, hook: Any) -> None:
        kept.append(value.detach().clone())
        raise Stopped

    until_stopped(0, partial(model.backend.run, run.tokens.ids, [(model.hook_name("resid_pre", 0), keep)]))
    return kept[0]
