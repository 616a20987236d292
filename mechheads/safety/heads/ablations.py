"""How heads are ablated after requests, which of them together, and what a result records of it.

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``"undifferentiated"``, ``UniformAttention(epsilon)`` |
| Scaling Contribution, W_v times epsilon | ``"scaling"``, ``Scale(epsilon)`` |

Zhou et al., ICLR 2025, arXiv 2410.13708. By name epsilon is 1e-4, as in the paper's code for scores of single
heads.

With grouped-query attention several query heads share W_k and W_v, a case that the paper does not discuss. Here query
heads are ablated one at a time, or all that share a key/value head. Such a group is named by its first query head, and
its score is that of each of its heads. In a model without grouped queries every group is a single head.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from mechheads.engine.cached_runs import Given, Held, held_by
from mechheads.engine.report import describe_intervention
from mechheads.generation.generate import changes_of
from mechheads.heads import HeadId, Heads, check_heads, matched_heads
from mechheads.interventions.basic import (
    Intervention,
    InterventionLike,
    InterventionName,
    Mean,
    MeanOf,
    Patch,
    Resample,
    Scale,
    UniformAttention,
    Zero,
    as_intervention,
)
from mechheads.interventions.new_z import HeadChange
from mechheads.messages.arguments import check_known
from mechheads.model.model import Model
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HeadCache

PAPER_KINDS: tuple[InterventionName, ...] = ("undifferentiated", "scaling")
"""The ablations of the paper, which scale a weight by epsilon."""
PAPER_ABLATIONS = {name: as_intervention(name) for name in PAPER_KINDS}
_NAMES: dict[type, str] = {
    UniformAttention: "undifferentiated",
    Scale: "scaling",
    Zero: "zero",
    Mean: "mean",
    MeanOf: "mean",
    Resample: "resample",
    Patch: "patch",
}


Group = Literal["query", "kv"]


@dataclass(frozen=True)
class Groups:
    """The groups of a model's query heads: each of ``size`` neighbours, which ``group=`` calls ``name``."""

    n_layers: int
    n_heads: int
    size: int
    name: Group = "query"

    @classmethod
    def of(cls, model: Model, group: Group) -> Groups:
        """The groups that ``group=`` asks for: ``"query"`` or ``"kv"``."""
        check_known("group", group, get_args(Group))
        return cls(model.n_layers, model.n_heads, 1 if group == "query" else model.n_heads // model.n_kv_heads, group)

    @property
    def unit(self) -> str:
        """What is ablated as one: "head" or "key/value group"."""
        return "head" if self.size == 1 else "key/value group"

    def first(self, head: HeadId) -> HeadId:
        """The first query head of a head's group, which names the group."""
        return HeadId(head.layer, head.head - head.head % self.size)

    def firsts(self, heads: Iterable[HeadId]) -> tuple[HeadId, ...]:
        """The groups of these heads, in their order and each once."""
        return tuple(dict.fromkeys(self.first(head) for head in heads))

    def units(self, heads: Heads | None) -> tuple[HeadId, ...]:
        """The groups of heads as a user gives them, in order of layer and head; ``None`` gives every group."""
        return self.firsts(check_heads(heads, self.n_layers, self.n_heads))

    def members(self, heads: Iterable[HeadId]) -> tuple[HeadId, ...]:
        """All query heads of these heads' groups, group by group."""
        return tuple(HeadId(head.layer, head.head + i) for head in self.firsts(heads) for i in range(self.size))

    def spread(self, values: Float[np.ndarray, "layer head *rest"]) -> Float[np.ndarray, "layer head *rest"]:
        """Gives the value of each group's first head to all of its heads."""
        return np.repeat(values[:, :: self.size], self.size, axis=1)

    def matched(self, heads: Sequence[HeadId], excluded: Collection[HeadId], seed: Sequence[int]) -> tuple[HeadId, ...]:
        """Random groups, as many as these and from the same layers; every group is named by its first head."""
        inside = {head for head in check_heads(None, self.n_layers, self.n_heads) if head.head % self.size}
        return matched_heads(heads, {*excluded, *inside}, self.n_layers, self.n_heads, seed)

    def random_sets(self, heads: Sequence[HeadId], *, draws: int, seed: int) -> dict[str, tuple[HeadId, ...]]:
        """Several draws of ``matched``, by the names "random 1", "random 2" and so on."""
        return {f"random {i + 1}": self.matched(heads, heads, [seed, i]) for i in range(draws)}

    def metadata(self) -> dict[str, Any]:
        """What a result records: how many neighbouring heads have a common score, and what they are."""
        return {"group": self.name, "together": self.size, "unit": self.unit}


def ablation_of(intervention: InterventionLike, name: str = "intervention") -> Intervention:
    """The intervention that ablates heads after requests, which have no other run to take values from."""
    made = as_intervention(intervention, name)
    if isinstance(made, Patch):
        raise ValueError(
            f"{name} is {made!r}, which takes values from another run, and requests have only one; give another, such "
            'as mh.Zero(). With look-alikes, mh.safety.refusal_contribution takes "patch"'
        )
    return made


def ablation_name(intervention: Intervention) -> str:
    """What results call an ablation: its name in the table of interventions if it has one, whatever its epsilon."""
    if intervention == UniformAttention():
        return "uniform"
    return _NAMES.get(type(intervention)) or describe_intervention(intervention)


def epsilon_of(intervention: Intervention) -> float | None:
    """The factor of one of the paper's ablations; None for other interventions."""
    if isinstance(intervention, UniformAttention):
        return intervention.epsilon
    return intervention.factor if isinstance(intervention, Scale) else None


def ablation_metadata(intervention: Intervention, groups: Groups) -> dict[str, Any]:
    """What a result records about how heads, or groups of heads, are ablated."""
    return {
        "ablation": ablation_name(intervention),
        "epsilon": epsilon_of(intervention),
        "through": intervention.through if isinstance(intervention, UniformAttention) else None,
        **groups.metadata(),
        "intervention": describe_intervention(intervention),
    }


def held_groups(given: Given | None, model: Model, groups: Groups) -> Held:
    """The heads that ``given=`` of ``mh.ships`` names, and how each is ablated, with all heads of their groups."""
    rules = {head: ablation_of(rule, f"given[{str(head)!r}]") for head, rule in held_by(given, model)}
    return tuple({member: rule for head, rule in rules.items() for member in groups.members([head])}.items())


def joint_changes(
    model: Model, intervention: Intervention, heads: Sequence[HeadId], tokens: Tokens, run: HeadCache | None = None
) -> list[HeadChange]:
    """Changes that ablate heads together, in any text; each head is ablated as it would be alone.
    A mean is over ``tokens``, from a ``run`` of these that kept z, if there is one."""
    if not heads:
        return []
    if isinstance(intervention, Mean):
        intervention = MeanOf(run or HeadCache.run(model, tokens, sites=("z",)))
    if isinstance(intervention, UniformAttention):  # heads share k; for one query head q gives the same
        intervention = replace(intervention, through="q")
    return changes_of(model, tokens, heads, intervention)


def check_joint(model: Model, intervention: Intervention, groups: Groups, tokens: Tokens) -> None:
    """Raise a ValueError if an intervention cannot ablate several heads at once, in any text."""
    if isinstance(intervention, Resample):
        raise ValueError(
            f"intervention is {intervention!r}, which takes z from another prompt; for sets of heads give another, "
            'such as "mean"'
        )
    if not isinstance(intervention, Mean):  # whose run is not needed for this
        joint_changes(model, intervention, groups.members([HeadId(0, 0)]), tokens)
