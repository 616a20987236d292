"""The kinds of results in one table: the papers, the unit, the null value and the figure of each.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

HEATMAP = "mechheads.plots.heatmap:heatmap"
CURVES = "mechheads.plots.curves:curves"


@dataclass(frozen=True)
class Kind:
    """What all results of one analysis have in common.

    Attributes:
        papers: keys of ``mechheads.results.citations.papers()``.
        unit: the unit of the numbers; empty if it depends on the metric.
        null: the mean score of a head that does nothing, for p and q values; ``None`` if there is no test.
        plot: the figure, as "module:function"; with ``None``, head scores are drawn as a heatmap and tables not at all.
        dims: the extra dimensions of head scores that the figure draws.
        needs: further variables that the figure reads. Head scores without these are drawn as a heatmap.
    """

    papers: tuple[str, ...] = ()
    unit: str = ""
    null: float | None = 0.0
    plot: str | None = None
    dims: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


_MAPS, _SHIPS, _GATING = ("elhelo2024maps",), ("zhou2025ships",), ("nam2025chg",)
_PATCHING, _IOI, _PATHS = ("zhang2024patching",), ("wang2023ioi",), ("wang2023ioi", "goldowsky2023paths")
_EDGES = ("syed2023attribution", "hanna2024faithfulness")
_LABELS: dict[str, Any] = {
    "plot": "mechheads.plots.category_map:category_map",
    "dims": ("category",),
    "needs": ("member",),
}
_SAFETY: dict[str, Any] = {"plot": "mechheads.plots.safety_map:safety_map", "needs": ("generalized_ships",)}
_MATRIX: dict[str, Any] = {"plot": "mechheads.plots.path_matrix:path_matrix", "dims": ("receiver",)}

KINDS: dict[str, Kind] = {
    # Scores of single heads
    "activation_patch": Kind(_PATCHING),
    "path_patch": Kind(_PATHS),
    "path_matrix": Kind(_PATHS, **_MATRIX),
    "attribution": Kind(("syed2023attribution", "kramar2024atp")),
    "edge_nodes": Kind(_EDGES, null=None),
    "mib": Kind(("mueller2025mib",), "importance", null=None),
    "learned_ranking": Kind(("mueller2025mib",), "logit of a gate", null=None),
    "ablate": Kind(("michel2019sixteen",)),
    "profile": Kind(("elhage2021framework", "olsson2022induction"), "share of attention", null=None),
    "copying": Kind(("elhage2021framework",), "share of the eigenvalues"),
    "composition": Kind(("elhage2021framework",), "share of the norms", null=None, **_MATRIX),
    "logit_attribution": Kind(("elhage2021framework", "nostalgebraist2020lens", "wang2023ioi"), "logits"),
    "function_vector": Kind(("todd2024function",)),
    "successor": Kind(("gould2024successor",), "share of pairs", null=None),
    "retrieval": Kind(("wu2024retrieval",), "share of tokens", null=None),
    "copy_suppression": Kind(("mcdougall2023copy", "elhage2021framework"), "logits", null=None),
    "self_repair": Kind(("mcgrath2023hydra", "rushing2024repair")),
    "relations": Kind(_MAPS, "share of pairs", null=None),
    "dynamic_relations": Kind(_MAPS, "share of pairs", null=None),
    "labels": Kind(_MAPS, "share of pairs", null=None, **_LABELS),
    "ships": Kind(_SHIPS, "nats", null=None),
    "generalized_ships": Kind(_SHIPS, "degrees", null=None),
    "safety": Kind(_SHIPS, "nats", null=None, **_SAFETY),
    "sahara": Kind(_SHIPS, "degrees", null=None),
    "refusal_contribution": Kind(_SHIPS, "nats"),
    "refusal_attribution": Kind((*_SHIPS, "syed2023attribution"), "nats"),
    "refusal_direction": Kind(("arditi2024refusal",), "residual units"),
    "gates": Kind(_GATING, "gate", null=None),
    "roles": Kind(_GATING, "gate", null=None),
    # Tables
    "examples": Kind(("elhage2021framework",), "share of the residual stream"),
    "patterns": Kind((), "share of attention"),
    "head_weights": Kind(("elhage2021framework", "elhelo2024maps"), "share of the norms"),
    "indirect_object": Kind(_PATHS, "logits", null=None),
    "set_scores": Kind(_PATCHING),
    "edge_scores": Kind(_EDGES),
    "faithfulness": Kind(_IOI, "share"),
    "faithfulness_curve": Kind(_IOI, "share", plot=CURVES),
    "circuit_curve": Kind(("mueller2025mib",), "share", plot=CURVES),
    "completeness": Kind(_IOI),
    "minimal_circuit": Kind((*_IOI, "conmy2023acdc"), "share"),
    "removal": Kind(_MAPS, "accuracy", plot=CURVES),
    "relation_evidence": Kind((*_MAPS, *_IOI), "share restored"),
    "head_group": Kind(_SHIPS, "degrees"),
    "refusal_brittleness": Kind(_SHIPS, "share of answers"),
    "refusal_test": Kind(_SHIPS, "share of answers"),
    "attack_curve": Kind(_SHIPS, "share of answers", plot=CURVES),
    "head_roles": Kind(_GATING, "gate", plot="mechheads.plots.heatmap:role_map"),
    "role_curves": Kind(_GATING, "nats", plot=CURVES),
}


def kind_of(name: str) -> Kind:
    """The kind with this name. A name that is not in the table is your own kind: no papers, no unit, null 0.

    >>> kind_of("ships").unit, kind_of("my own").null
    ('nats', 0.0)
    """
    return KINDS.get(name, Kind())


def draw(figure: str, *what: Any, **options: Any) -> go.Figure:
    """Draw the figure with this name, as in ``Kind.plot``."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*what, **options)
