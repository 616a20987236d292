"""Ablations of the tests of safety, by name and epsilon, and as hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import mechheads as mh
from mechheads.interventions.basic import Scale, UniformAttention, as_intervention
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks
from mechheads.model.backend import Hook
from mechheads.safety.heads.ablations import joint_changes


def rule_of(kind: Any, epsilon: float = 1e-4, through: Literal["q", "k"] = "q") -> Any:
    """The intervention of this name with this epsilon, if it has one; other names as they are."""
    if kind == "undifferentiated":
        return UniformAttention(epsilon, through)
    return Scale(epsilon) if kind == "scaling" else kind


def changes_of(model: mh.Model, rule: Any, heads: Sequence[mh.HeadId], prompts: Any) -> list[HeadChange]:
    """Changes that ablate heads together; a mean is over all tokens of these prompts."""
    return joint_changes(model, as_intervention(rule), heads, mh.Prompts(prompts).tokens(model))


def hooks_of(model: mh.Model, rule: Any, heads: Sequence[mh.HeadId], prompts: Any) -> list[Hook]:
    """``changes_of`` as hooks."""
    return change_hooks(model, [(change, EVERYWHERE) for change in changes_of(model, rule, heads, prompts)])
