"""What is known of scores besides their numbers: what they are called, their null and their prompts."""

from __future__ import annotations

import json

import numpy as np
from jaxtyping import Int

from mechheads.results.kinds import kind_of, shortened, titled
from mechheads.results.scores import HeadScores
from mechheads.results.stats import carried_by

ASKED = {"pairs": "the capital", "requests": "harmful requests", "task": "naming the capital"}
"""What the questions of the package are about, as ``Atlas.asked`` says it."""
LEAST_CLUSTERS_TESTED = 6
"""The fewest clusters with which one head can have a family p of 0.05: 2 / 2**6 = 0.031."""
_ROLES = ("facilitation", "interference", "irrelevance")


def kind_name(scores: HeadScores) -> str:
    """The kind of scores: of safety heads that of the score that found them, and of a sum that of its left side."""
    kind = scores.kind.partition("+")[0]
    return str(scores.provenance.get("score", "ships")) if kind == "safety" else kind


def label_of(scores: HeadScores, kind: str = "") -> str:
    """What scores are called: by their kind and what was chosen in the call, or by their own name.

    Args:
        kind: that of other numbers that stand beside the scores.

    >>> about = {"ablation": "scaling", "score": "ships"}
    >>> ships = HeadScores.from_scores(np.ones((1, 2)), name="x", kind="safety", provenance=about)
    >>> from mechheads.results.about import label_of
    >>> label_of(ships)
    'Ships, scaling'
    """
    name, about = kind or kind_name(scores), scores.provenance
    selected, receivers, role = about.get("selected"), about.get("receivers"), scores.name.partition(",")[0]
    chosen = {dim: str(label) for dim, label in selected.items()} if isinstance(selected, dict) else {}
    label = kind_of(name).label or shortened(scores.name)
    if name in ("roles", "gates") and role in _ROLES:
        label = role.capitalize()
    elif name in ("path_patch", "path_matrix"):
        ends = receivers if isinstance(receivers, list) else []
        label = shortened(f"{label} to {chosen.pop('receiver', '') or ', '.join(map(str, ends))}")
    elif name == "activation_patch" and "noising" in (about.get("direction"), chosen.pop("direction", "")):
        label += ", noising"
    elif kind_of(name).question == "requests" and isinstance(ablation := about.get("ablation"), str):
        label += f", {ablation}"
    if kind_of(name).label:
        label = ", ".join([label, *(each.replace("_", " ") for each in chosen.values())])
    return titled(label, about)


def null_of(scores: HeadScores) -> float | None:
    """The mean score of a head that does nothing; None if nothing is known of it."""
    statistics = scores.dataset.attrs.get("statistics")
    return kind_of(scores.kind).null if statistics is None else json.loads(statistics)["null"]


def has_null(scores: HeadScores) -> bool:
    """Whether scores were tested against a null at all, however few the prompts."""
    return null_of(scores) is not None and bool(np.isfinite(scores.dataset["p_value"].values).any())


def n_prompts(scores: HeadScores) -> int:
    """How many prompts the scores are means over; 0 if they are no means."""
    return scores.dataset.sizes.get("prompt", 0)


def n_clusters(scores: HeadScores) -> int | None:
    """How many independent samples the means are over; None if the scores are no means."""
    return len(set(scores.dataset["cluster"].values.tolist())) if scores.values is not None else None


def carrying_prompts(scores: HeadScores) -> Int[np.ndarray, "layer head"]:
    """The prompt whose cluster alone carries a head's score: without it, the score halves or has the other sign.

    -1 if there is no such prompt, or the scores are no means over prompts for each head.

    >>> values = np.array([[[0.1, 0.0, 6.0, 0.1], [1.0, 2.0, 1.5, 1.0]]])
    >>> scores = HeadScores.from_values(values, name="effect", unit="logits", kind="demo")
    >>> from mechheads.results.about import carrying_prompts
    >>> carrying_prompts(scores).tolist()
    [[2, -1]]
    """
    if scores.values is None or scores.extra_dims:
        return np.full((scores.n_layers, scores.n_heads), -1)
    return carried_by(scores.values.values, scores.dataset["cluster"].values)
