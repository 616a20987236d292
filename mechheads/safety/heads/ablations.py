"""Ablation of heads after requests, alone or together, and its record in results.

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``"undifferentiated"``, ``UniformAttention(epsilon)`` |
| Scaling Contribution, W_v times epsilon | ``"scaling"``, ``Scale(epsilon)`` |

Zhou et al., ICLR 2025, arXiv 2410.13708. An ablation by name has an epsilon of 1e-4, as in the paper's code for scores
of single heads.

With grouped-query attention several query heads share W_k and W_v, a case that the paper does not discuss. Here one
query head is ablated, and the others keep their keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mechheads.engine.cached_runs import Ablated, Given, ablated_heads
from mechheads.engine.report import describe_intervention
from mechheads.generation.generate import changes_of
from mechheads.heads import HeadId
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


def ablation_of(intervention: InterventionLike, name: str = "intervention") -> Intervention:
    """The intervention that ablates heads after requests, which have no other run to take values from."""
    rule = as_intervention(intervention, name)
    if isinstance(rule, Patch):
        raise ValueError(
            f"{name} is {rule!r}, which takes values from another run, and requests have only one; give another, such "
            'as mh.Zero(). With look-alikes, mh.safety.refusal_contribution takes "patch"'
        )
    return rule


def ablation_name(intervention: Intervention) -> str:
    """The name of an ablation in results: its name in the table of interventions if it has one, for any epsilon."""
    if intervention == UniformAttention():
        return "uniform"
    return _NAMES.get(type(intervention)) or describe_intervention(intervention)


def epsilon_of(intervention: Intervention) -> float | None:
    """The factor of one of the paper's ablations; None for other interventions."""
    if isinstance(intervention, UniformAttention):
        return intervention.epsilon
    return intervention.factor if isinstance(intervention, Scale) else None


def ablation_metadata(intervention: Intervention) -> dict[str, Any]:
    """The record of an ablation in a result's provenance."""
    return {
        "ablation": ablation_name(intervention),
        "epsilon": epsilon_of(intervention),
        "through": intervention.through if isinstance(intervention, UniformAttention) else None,
        "intervention": describe_intervention(intervention),
    }


def other_ablations(given: Given | None, model: Model) -> Ablated:
    """The heads that ``given=`` of ``mh.ships`` names, each with its intervention."""
    return tuple((head, ablation_of(rule, f"given[{str(head)!r}]")) for head, rule in ablated_heads(given, model))


def joint_changes(
    model: Model, intervention: Intervention, heads: Sequence[HeadId], tokens: Tokens, run: HeadCache | None = None
) -> list[HeadChange]:
    """Changes that ablate heads together, in any text; each head is ablated as it would be alone.
    A mean is over ``tokens``, from a ``run`` of them that has z, if there is one."""
    if not heads:
        return []
    if isinstance(intervention, Mean):
        intervention = MeanOf(run or HeadCache.run(model, tokens, sites=("z",)))
    if isinstance(intervention, UniformAttention):  # heads share k; changing q instead has the same effect for one head
        intervention = replace(intervention, through="q")
    return changes_of(model, tokens, heads, intervention)


def check_joint(model: Model, intervention: Intervention, tokens: Tokens) -> None:
    """Raise a ValueError if an intervention cannot ablate several heads at once, in any text."""
    if isinstance(intervention, Resample):
        raise ValueError(
            f"intervention is {intervention!r}, which takes z from another prompt; for sets of heads give another, "
            'such as "mean"'
        )
    if not isinstance(intervention, Mean):  # a mean always can, and its run is not needed here
        joint_changes(model, intervention, [HeadId(0, 0)], tokens)
