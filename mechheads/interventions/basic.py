"""The interventions that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.interventions.base import Context, Site


@dataclass(frozen=True)
class Zero:
    """z becomes zero: the head writes nothing but its share of b_O."""

    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True)
class Mean:
    """z becomes its mean over all real tokens of all prompts: the head says the same everywhere."""

    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        real = context.mask[..., None]
        mean = (value.float() * real).sum((0, 1)) / real.sum()
        return mean.to(value.dtype).expand_as(value)


@dataclass(frozen=True)
class Resample:
    """z becomes that of another prompt of the set, position by position from the start.

    Where the other prompt is shorter, its last token stands in for the rest. Each prompt gives its z to
    exactly one other, in an order drawn from ``seed``.
    """

    seed: int = 0
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        n, pos = context.mask.shape
        if n < 2:
            raise ValueError("Resample needs at least two prompts: there is no other to take z from")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        donor = torch.empty(n, dtype=torch.long)
        donor[order] = order.roll(1)
        donor = donor.to(value.device)
        last = context.mask.sum(1)[donor, None] - 1
        where = torch.arange(pos, device=value.device).minimum(last)
        return value[donor[:, None], where]


@dataclass(frozen=True)
class Scale:
    """z becomes ``factor`` times z: Scaling Contribution of the safety-head paper (W_v times epsilon)."""

    factor: float
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return value * self.factor


@dataclass(frozen=True)
class UniformAttention:
    """q, or k, becomes ``epsilon`` times itself, so that attention spreads evenly over the tokens so far.

    Undifferentiated Attention of the safety-head paper (W_q or W_k, and its bias, times epsilon); at 0, the default,
    row i of the pattern is 1/i over the first i tokens and z the causal mean of v; with a sliding window,
    over the tokens inside it. Where a model norms q and k, which would undo a factor on the weights, they shrink
    after the norm. Scores are products of q and k, so for one query head both ways are the same.
    """

    epsilon: float = 0.0
    through: Literal["q", "k"] = "q"
    needs: ClassVar = ()

    @property
    def site(self) -> Site:
        return "scored_q" if self.through == "q" else "scored_k"

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return value * self.epsilon


@dataclass(frozen=True)
class Patch:
    """The activation at ``site`` becomes that of the other run: activation patching."""

    site: Site = "z"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.site,)

    def __call__(self, value: Float[Tensor, "prompt ..."], context: Context) -> Tensor:
        if context.source is None:
            raise ValueError("Patch takes the value from the other run; give PromptPairs, not single prompts")
        return context.source.site(self.site)[context.head]
