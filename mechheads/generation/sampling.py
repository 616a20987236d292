"""How many tokens are written, and how each is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.messages.arguments import check_at_least


@dataclass(frozen=True)
class Sampling:
    """How many tokens are written, and how each is chosen.

    Attributes:
        max_new_tokens: the largest number of new tokens for each prompt.
        temperature: 0 takes the most probable token; above, tokens are drawn from logits divided by it.
        top_k: draw among this many most probable tokens only; None for all.
        seed: of the drawing. The random numbers of a prompt do not depend on how prompts are batched.

    Raises:
        ValueError: if an attribute is out of range, or ``top_k`` is given with temperature 0.

    >>> from mechheads.generation.sampling import Sampling
    >>> Sampling(max_new_tokens=3, temperature=0.7)
    Sampling(max_new_tokens=3, temperature=0.7, top_k=None, seed=0)
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, max_new_tokens=self.max_new_tokens)
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or a finite number above")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}; it must be at least 1, or left out")
        if self.top_k is not None and not self.temperature:
            raise ValueError(f"top_k is {self.top_k}, but temperature 0 draws nothing; give temperature=1.0 to sample")

    def noise(self, prompts: int, device: torch.device) -> Float[Tensor, "prompt step"] | None:
        """A random number for each prompt and step, the same on every device; None if nothing is drawn."""
        if not self.temperature:
            return None
        drawn = torch.Generator().manual_seed(self.seed)
        return torch.rand(prompts, self.max_new_tokens, generator=drawn).to(device)


GREEDY = Sampling()
"""The most probable token at each step, at most 128 of them."""
