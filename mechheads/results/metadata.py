"""Labels, nulls and prompts of scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int

from mechheads.results.kinds import kind_of
from mechheads.results.scores import HeadScores
from mechheads.results.shown import shortened, titled
from mechheads.results.stats import carried_by

SUBJECTS = {"pairs": "the capital", "requests": "harmful requests"}
"""The subjects of the package's own pairs and requests, as in ``Atlas.asked``."""
LEAST_REFUSAL = 0.1
"""A model that refuses a smaller share of harmful requests counts as not refusing; openings with a smaller mean
probability give a warning."""
LEAST_CLUSTERS_TESTED = 6
"""The fewest clusters with which one head can have a family p of 0.05: 2 / 2**6 = 0.031."""
_ROLES = ("facilitation", "interference", "irrelevance")


def kind_name(scores: HeadScores) -> str:
    """The kind of scores: for safety heads the kind of score that ranks them, for a sum the kind of its left side."""
    kind = scores.kind.partition("+")[0]
    return str(scores.provenance.get("score", "ships")) if kind == "safety" else kind


def label_of(scores: HeadScores, kind: str = "") -> str:
    """The label of scores: the label of their kind (or of ``kind``) with the selected labels, or else their name."""
    name, provenance = kind or kind_name(scores), scores.provenance
    selected, receivers, role = provenance.get("selected"), provenance.get("receivers"), scores.name.partition(",")[0]
    chosen = {dim: str(label) for dim, label in selected.items()} if isinstance(selected, dict) else {}
    label = kind_of(name).label or shortened(scores.name)
    if name in ("roles", "gates") and role in _ROLES:
        label = role.capitalize()
    elif name in ("path_patch", "path_matrix"):
        ends = receivers if isinstance(receivers, list) else []
        label = shortened(f"{label} to {chosen.pop('receiver', '') or ', '.join(map(str, ends))}")
    elif name == "activation_patch" and "noising" in (provenance.get("direction"), chosen.pop("direction", "")):
        label += ", noising"
    elif kind_of(name).question == "requests" and isinstance(ablation := provenance.get("ablation"), str):
        label += f", {ablation}"
    if kind_of(name).label:
        label = ", ".join([label, *(each.replace("_", " ") for each in chosen.values())])
    return titled(label, provenance)


def null_of(scores: HeadScores) -> float | None:
    """The mean score of a head that does nothing; None if it is not known."""
    statistics = scores.dataset.attrs.get("statistics")
    return kind_of(scores.kind).null if statistics is None else json.loads(statistics)["null"]


def has_null(scores: HeadScores) -> bool:
    """Whether scores were tested against a null at all, however few the prompts."""
    return null_of(scores) is not None and bool(np.isfinite(scores.dataset["p_value"].values).any())


def n_prompts(scores: HeadScores) -> int:
    """How many prompts the scores are means over; 0 if they are not means."""
    return scores.dataset.sizes.get("prompt", 0)


def n_clusters(scores: HeadScores) -> int | None:
    """How many clusters the scores are means over; None if they are not means."""
    return len(set(scores.dataset["cluster"].values.tolist())) if scores.values is not None else None


def carrying_prompts(scores: HeadScores) -> Int[np.ndarray, "layer head"]:
    """The prompt whose cluster alone carries a head's score: without it, the score halves or has the other sign."""
    if scores.values is None or scores.extra_dims:
        return np.full((scores.n_layers, scores.n_heads), -1)
    return carried_by(scores.values.values, scores.dataset["cluster"].values)


def refused_of(refused: Mapping[str, Any] | None) -> str:
    """How many requests a model refused, such as "refused 0 of 8, 2 not judged"; empty for None."""
    if refused is None:
        return ""
    unjudged = refused.get("unjudged", 0)
    return f"refused {refused['n']} of {refused['of']}" + (f", {unjudged} not judged" if unjudged else "")
