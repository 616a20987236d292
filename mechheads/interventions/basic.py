"""The interventions that come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.interventions.base import Context, Intervention, Site
from mechheads.limits import current
from mechheads.messages.arguments import check_known
from mechheads.runs.head_cache import HeadCache

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
    """z becomes its mean over all real tokens of a given run, such as ``model.cache(texts)``.

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
    """An intervention, or the one of that name; the names are the same in every function that takes an intervention.

    ``"patch"`` is ``Patch()``, ``"zero"`` ``Zero()``, ``"mean"`` ``Mean()``, ``"resample"`` ``Resample`` with the seed
    of ``mh.settings``, ``"uniform"`` ``UniformAttention()``. ``"undifferentiated"`` and ``"scaling"`` are the two
    ablations of Zhou et al. (ICLR 2025), ``UniformAttention(1e-4)`` and ``Scale(1e-4)``.

    Args:
        name: the argument's name, for messages.

    Raises:
        ValueError: if it is neither.

    >>> as_intervention("mean")
    Mean()
    """
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
