"""Interventions: what one head's activation becomes.

An intervention is a function ``(value, context) -> value`` of one head's activation, or a frozen
dataclass with such a ``__call__``. Without more, the value is ``z`` [prompt, pos, d_head]. A class may
set ``site`` to ``"q"``, ``"k"``, ``"v"`` or ``"pattern"`` [prompt, query, key]: then the head's new ``z``
is what attention makes of the new value. It may set ``needs`` to the activations it reads from the
cached runs (default: all), which saves memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.messages.suggest import did_you_mean
from mechheads.runs.cache import HeadCache
from mechheads.runs.sites import HEAD_SITES, SITES

Site = Literal["z", "q", "k", "v", "pattern", "scored_q", "scored_k"]
"""``scored_q`` and ``scored_k`` are q and k as they meet: after norm and rotation in a model that norms them, else the
same as q and k."""


@dataclass(frozen=True)
class Context:
    """What an intervention may look at.

    Attributes:
        head: the head it acts on. For ``k`` and ``v`` under grouped-query attention it is called once
            for each key/value head, with the first query head of its group.
        base: the run that is intervened on.
        source: the other run, where prompts come as pairs.
        mask: True where a token is real, False where it is padding [prompt, pos].
    """

    head: HeadId
    base: HeadCache
    source: HeadCache | None
    mask: Bool[Tensor, "prompt pos"]


@runtime_checkable
class Intervention(Protocol):
    """What a sweep takes: see the module's docstring."""

    def __call__(self, value: Float[Tensor, "prompt ..."], context: Context, /) -> Float[Tensor, "prompt ..."]: ...


def site_of(intervention: Intervention) -> Site:
    """The activation that an intervention acts on; ``z`` where it does not say.

    Raises:
        ValueError: if it names none that there is.
    """
    site = getattr(intervention, "site", "z")
    if site not in HEAD_SITES:
        meant = did_you_mean(site, SITES)
        raise ValueError(f"site {site!r} of the intervention is not known; choose among {', '.join(SITES)}.{meant}")
    return site


def needs_of(intervention: Intervention) -> tuple[str, ...]:
    """The activations that an intervention reads from the cached runs; all where it does not say."""
    return tuple(getattr(intervention, "needs", ("z", "pattern", "q", "k", "v")))
