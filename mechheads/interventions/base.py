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
