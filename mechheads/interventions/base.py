"""Interventions: rules that give a head a new activation.

An intervention is a function ``(value, context) -> value`` of one head's activation, or a frozen dataclass with such a
``__call__``. By default, the value is ``z`` [prompt, pos, d_head]. A class may set ``site`` to ``"q"``, ``"k"``,
``"v"`` or ``"pattern"`` [prompt, query, key]: then the head's new ``z`` is computed from the new value. It may set
``needs`` to the activations that it reads from the cached runs (default: all), which saves memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.messages.arguments import did_you_mean
from mechheads.runs.head_cache import HEAD_SITES, SITES, HeadCache

Site = Literal["z", "q", "k", "v", "pattern", "scored_q", "scored_k"]
"""``scored_q`` and ``scored_k`` are the q and k that are multiplied with each other. In a model that norms q and k,
they are taken after norm and rotation; in other models they are the same as q and k."""


@dataclass(frozen=True)
class Context:
    """What an intervention can use besides the head's activation.

    Attributes:
        head: the head that is changed. For ``k`` and ``v`` under grouped-query attention, the intervention is called
            once for each key/value head, with the first query head of its group.
        base: the base run.
        source: the source run; None for plain prompts.
        mask: True for real tokens, False for padding [prompt, pos].
    """

    head: HeadId
    base: HeadCache
    source: HeadCache | None
    mask: Bool[Tensor, "prompt pos"]

    def noise(self, seed: int = 0) -> Float[Tensor, "prompt pos d_head"]:
        """Random numbers, standard normal, in float32: of a token, they depend on the seed and the tokens up to it.

        So an intervention that uses them gives a prompt the same numbers whatever the other prompts, the padding and
        the order are, in every process. All heads get the same numbers; give each another seed for others.

        Raises:
            ValueError: in text, which is written token by token.

        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Noisy:
        ...     size: float
        ...     seed: int = 0
        ...
        ...     def __call__(self, z, context):
        ...         return z + self.size * context.noise(self.seed).to(z)
        >>> noisy = mh.sweep(model, ["The capital of France is"], intervention=Noisy(0.1), heads="L23H4")
        """
        ids = self.base.tokens.on_cpu.ids.numpy() if self.base is not None else np.zeros((0, 0))
        if ids.shape != self.mask.shape:
            raise ValueError("noise depends on the tokens of whole prompts; text is written token by token")
        state = _mixed(np.full(len(ids), seed % 2**64, dtype=np.uint64))
        states = np.empty(ids.shape, dtype=np.uint64)
        for pos in range(ids.shape[1]):
            states[:, pos] = state = _mixed(state * _ODD + ids[:, pos].astype(np.uint64))
        d_head = self.base.z[self.head].shape[-1]
        drawn = _mixed(states[..., None] + np.arange(1, 2 * d_head + 1, dtype=np.uint64) * _ODD)
        one, two = np.split(((drawn >> np.uint64(11)) + 0.5) * 2.0**-53, 2, axis=-1)
        normal = np.sqrt(-2 * np.log(one)) * np.cos(2 * np.pi * two)  # Box and Muller 1958
        return torch.from_numpy(normal).float().to(self.mask.device)


_ODD = np.uint64(0x9E3779B97F4A7C15)


def _mixed(states: np.ndarray) -> np.ndarray:
    """Whole numbers of 64 bits whose bits are mixed: the finaliser of SplitMix64 (Steele et al. 2014)."""
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))


@runtime_checkable
class Intervention(Protocol):
    """The type of an intervention; see the module's docstring."""

    def __call__(self, value: Float[Tensor, "prompt ..."], context: Context, /) -> Float[Tensor, "prompt ..."]: ...


@runtime_checkable
class PatternOfTokens(Protocol):
    """An intervention on the pattern that reads nothing but the tokens, so that it holds in text that is written."""

    def weights(self, tokens: Sequence[str], /) -> Float[Tensor, "pos pos"]: ...


def site_of(intervention: Intervention) -> Site:
    """The activation that an intervention replaces; ``z`` if it declares no ``site``.

    Raises:
        ValueError: if the site is not known.
    """
    site = getattr(intervention, "site", "z")
    if site not in HEAD_SITES:
        meant = did_you_mean(site, SITES)
        raise ValueError(f"site {site!r} of the intervention is not known; choose among {', '.join(SITES)}.{meant}")
    return site


def needs_of(intervention: Intervention) -> tuple[str, ...]:
    """The activations that an intervention reads from the cached runs; all if it declares no ``needs``."""
    return tuple(getattr(intervention, "needs", ("z", "pattern", "q", "k", "v")))
