"""Interventions, rules that give a head a new activation, and those that come with the package.

An intervention is a function ``(value, context) -> value`` of one head's activation, or a frozen dataclass with such a
``__call__``. By default, the value is ``z`` [prompt, pos, d_head]. A class may set ``site`` to ``"q"``, ``"k"``,
``"v"`` or ``"pattern"`` [prompt, query, key]: then the head's new ``z`` is computed from the new value. It may set
``needs`` to the activations that it reads from the cached runs (default: all), which saves memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.limits import current
from mechheads.messages.arguments import check_known, did_you_mean
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
        """Standard normal random numbers in float32. A token's numbers depend on the seed and the tokens up to it.

        So an intervention that uses them gives a prompt the same numbers whatever the other prompts, the padding and
        the order are, in every process. All heads get the same numbers; give each another seed for others.

        Raises:
            ValueError: in generated text, which is written token by token.

        >>> noisy = lambda z, context: z + 0.1 * context.noise(seed=1).to(z)
        >>> effect = mh.sweep(model, ["The capital of France is"], intervention=noisy, heads="L23H4")
        """
        rows = self.base.tokens.on_cpu.ids.tolist() if self.base is not None else []
        if (len(rows), *map(len, rows[:1])) != self.mask.shape:
            raise ValueError("noise depends on the tokens of whole prompts; text is written token by token")
        drawn = np.empty((*self.mask.shape, self.base.z[self.head].shape[-1]), np.float32)
        for row, ids in zip(drawn, rows, strict=True):
            for pos in range(len(ids)):
                np.random.default_rng([seed % 2**64, *ids[: pos + 1]]).standard_normal(out=row[pos], dtype=np.float32)
        return torch.from_numpy(drawn).to(self.mask.device)


@runtime_checkable
class Intervention(Protocol):
    """The type of an intervention; see the module's docstring."""

    def __call__(self, value: Float[Tensor, "prompt ..."], context: Context, /) -> Float[Tensor, "prompt ..."]: ...


@runtime_checkable
class PatternOfTokens(Protocol):
    """An intervention on the pattern that reads nothing but the tokens, so that it also works in generated text."""

    def weights(self, tokens: Sequence[str], /) -> Float[Tensor, "pos pos"]: ...


def site_of(intervention: Intervention) -> Site:
    """The activation that an intervention replaces; ``z`` if it declares no ``site``."""
    site = getattr(intervention, "site", "z")
    if site not in HEAD_SITES:
        meant = did_you_mean(site, SITES)
        raise ValueError(f"site {site!r} of the intervention is not known; choose among {', '.join(SITES)}.{meant}")
    return site


def needs_of(intervention: Intervention) -> tuple[str, ...]:
    """The activations that an intervention reads from the cached runs; all if it declares no ``needs``."""
    return tuple(getattr(intervention, "needs", ("z", "pattern", "q", "k", "v")))


PAPER_EPSILON = 1e-4
"""The factor of both ablations in Zhou et al. (ICLR 2025)."""


@dataclass(frozen=True)
class Zero:
    """z becomes zero: the head adds nothing to the residual stream. The layer's b_O stays."""

    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return torch.zeros_like(value)


@dataclass(frozen=True)
class Mean:
    """z becomes its mean over all real tokens of all prompts: the head adds the same vector at every token."""

    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return mean_of_tokens(value, context.mask).to(value.dtype).expand_as(value)


def mean_of_tokens(
    value: Float[Tensor, "prompt pos d_head"], mask: Bool[Tensor, "prompt pos"]
) -> Float[Tensor, " d_head"]:
    """The mean over all real tokens of all prompts, in float32."""
    real = mask[..., None]
    return (value.float() * real).sum((0, 1)) / real.sum()


@dataclass(frozen=True, eq=False)
class MeanOf:
    """z becomes its mean over all real tokens of another run, such as ``model.cache(texts)``.

    Unlike ``Mean``, it gives a prompt the same z whatever the other prompts are.
    """

    run: HeadCache
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return self.of(context.head).to(value).expand_as(value)

    def of(self, head: HeadId) -> Float[Tensor, " d_head"]:
        """The mean z of one head."""
        return mean_of_tokens(self.run.z[head], self.run.tokens.mask)


@dataclass(frozen=True)
class Resample:
    """z becomes the head's z on another of the prompts, position by position from the start.

    If the other prompt is shorter, the z of its last token is used for the remaining positions. Each prompt gives its
    z to exactly one other prompt, in a random order drawn from ``seed``.
    """

    seed: int = 0
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        n, pos = context.mask.shape
        if n < 2:
            raise ValueError("Resample takes z from another prompt; give at least two prompts")
        order = torch.randperm(n, generator=torch.Generator().manual_seed(self.seed))
        donor = torch.empty(n, dtype=torch.long)
        donor[order] = order.roll(1)
        donor = donor.to(value.device)
        last = context.mask.sum(1)[donor, None] - 1
        where = torch.arange(pos, device=value.device).minimum(last)
        return value[donor[:, None], where]


@dataclass(frozen=True)
class Scale:
    """z becomes ``factor`` times z: Scaling Contribution (Zhou et al., ICLR 2025), which multiplies W_v by epsilon."""

    factor: float
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return value * self.factor


@dataclass(frozen=True)
class UniformAttention:
    """q or k becomes ``epsilon`` times itself, so that attention spreads evenly over the tokens so far.

    This is Undifferentiated Attention (Zhou et al., ICLR 2025), which multiplies W_q or W_k and its bias by epsilon. At
    0, the default, row i of the pattern is 1/i over the first i tokens, and z is the causal mean of v; with a sliding
    window, the mean over the window. If a model norms q and k, the norm would undo a factor on the weights, so q or k
    is multiplied after the norm. Scores are products of q and k, so for one query head both choices give the same.
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
    """The activation at ``site`` becomes its value in the source run: activation patching."""

    site: Site = "z"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.site,)

    def __call__(self, value: Float[Tensor, "prompt ..."], context: Context) -> Tensor:
        if context.source is None:
            raise ValueError("Patch takes values from the source run of a pair; give mh.PromptPairs, not plain prompts")
        return context.source.site(self.site)[context.head]


InterventionName = Literal["patch", "zero", "mean", "resample", "uniform", "undifferentiated", "scaling"]
InterventionLike = Intervention | InterventionName
"""The type of ``intervention`` arguments: an intervention, or the name of one in the table of ``as_intervention``."""


def as_intervention(intervention: InterventionLike, name: str = "intervention") -> Intervention:
    """The intervention itself, or the one with this name; ``name`` is the name of the argument, for messages."""
    if isinstance(intervention, str):
        check_known(name, intervention, InterventionName)
        named: dict[str, Intervention] = {
            "patch": Patch(),
            "zero": Zero(),
            "mean": Mean(),
            "resample": Resample(current().seed),
            "uniform": UniformAttention(),
            "undifferentiated": UniformAttention(PAPER_EPSILON),
            "scaling": Scale(PAPER_EPSILON),
        }
        return named[intervention]
    if not callable(intervention) or isinstance(intervention, type):
        raise ValueError(
            f"{name} is {intervention!r}; give an intervention, such as mh.Patch(), mh.Mean() or mh.Zero(), or a name, "
            'such as "mean"'
        )
    return intervention
