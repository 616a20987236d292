"""The kinds of results in one table: the papers, the unit, the null value and the figure of each; and citations.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed. The explorer is named so too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mechheads.data import folder

HEATMAP = "mechheads.plots.heatmap:heatmap"
EXPLORER = "mechheads.explorer.explore:explore"
OPEN = ".explore() shows it in a page of all heads"
CURVES = "mechheads.plots.curves:curves"


@dataclass(frozen=True)
class ResultKind:
    """What all results of one analysis have in common.

    Attributes:
        papers: keys of ``papers()``.
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
_MATRIX: dict[str, Any] = {"plot": "mechheads.plots.heatmap:path_matrix", "dims": ("receiver",)}

KINDS: dict[str, ResultKind] = {
    # Scores of single heads
    "activation_patch": ResultKind(_PATCHING),
    "path_patch": ResultKind(_PATHS),
    "path_matrix": ResultKind(_PATHS, **_MATRIX),
    "attribution": ResultKind(("syed2023attribution", "kramar2024atp")),
    "edge_nodes": ResultKind(_EDGES, null=None),
    "mib": ResultKind(("mueller2025mib",), "importance", null=None),
    "learned_ranking": ResultKind(("mueller2025mib",), "logit of a gate", null=None),
    "ablate": ResultKind(("michel2019sixteen",)),
    "profile": ResultKind(("elhage2021framework", "olsson2022induction"), "share of attention", null=None),
    "copying": ResultKind(("elhage2021framework",), "share of the eigenvalues"),
    "composition": ResultKind(("elhage2021framework",), "share of the norms", null=None, **_MATRIX),
    "logit_attribution": ResultKind(("elhage2021framework", "nostalgebraist2020lens", "wang2023ioi"), "logits"),
    "function_vector": ResultKind(("todd2024function",)),
    "successor": ResultKind(("gould2024successor",), "share of pairs", null=None),
    "retrieval": ResultKind(("wu2024retrieval",), "share of tokens", null=None),
    "copy_suppression": ResultKind(("mcdougall2023copy", "elhage2021framework"), "logits", null=None),
    "self_repair": ResultKind(("mcgrath2023hydra", "rushing2024repair")),
    "relations": ResultKind(_MAPS, "share of pairs", null=None),
    "dynamic_relations": ResultKind(_MAPS, "share of pairs", null=None),
    "labels": ResultKind(_MAPS, "share of pairs", null=None, **_LABELS),
    "ships": ResultKind(_SHIPS, "nats", null=None),
    "generalized_ships": ResultKind(_SHIPS, "degrees", null=None),
    "safety": ResultKind(_SHIPS, "nats", null=None, **_SAFETY),
    "sahara": ResultKind(_SHIPS, "degrees", null=None),
    "refusal_contribution": ResultKind(_SHIPS, "nats"),
    "refusal_attribution": ResultKind((*_SHIPS, "syed2023attribution"), "nats"),
    "refusal_direction": ResultKind(("arditi2024refusal",), "residual units"),
    "gates": ResultKind(_GATING, "gate", null=None),
    "roles": ResultKind(_GATING, "gate", null=None),
    # Tables
    "examples": ResultKind(("elhage2021framework",), "share of the residual stream"),
    "patterns": ResultKind((), "share of attention"),
    "head_weights": ResultKind(("elhage2021framework", "elhelo2024maps"), "share of the norms"),
    "description": ResultKind((), "rank correlation"),
    "head_space": ResultKind((), "share of variance"),
    "indirect_object": ResultKind(_PATHS, "logits", null=None),
    "set_scores": ResultKind(_PATCHING),
    "edge_scores": ResultKind(_EDGES),
    "faithfulness": ResultKind(_IOI, "share"),
    "faithfulness_curve": ResultKind(_IOI, "share", plot=CURVES),
    "circuit_curve": ResultKind(("mueller2025mib",), "share", plot=CURVES),
    "completeness": ResultKind(_IOI),
    "minimal_circuit": ResultKind((*_IOI, "conmy2023acdc"), "share"),
    "removal": ResultKind(_MAPS, "accuracy", plot=CURVES),
    "relation_evidence": ResultKind((*_MAPS, *_IOI), "share restored"),
    "head_group": ResultKind(_SHIPS, "degrees"),
    "refusal_brittleness": ResultKind(_SHIPS, "share of answers"),
    "refusal_test": ResultKind(_SHIPS, "share of answers"),
    "attack_curve": ResultKind(_SHIPS, "share of answers", plot=CURVES),
    "head_roles": ResultKind(_GATING, "gate", plot="mechheads.plots.heatmap:role_map"),
    "role_curves": ResultKind(_GATING, "nats", plot=CURVES),
}


def kind_of(name: str) -> ResultKind:
    """The kind with this name. A name that is not in the table is your own kind: no papers, no unit, null 0.

    >>> kind_of("ships").unit, kind_of("my own").null
    ('nats', 0.0)
    """
    return KINDS.get(name, ResultKind())


def draw(figure: str, *what: Any, **options: Any) -> Any:
    """Draw the figure with this name, as in ``ResultKind.plot``, or open the explorer."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*what, **options)


_TRANSFORMERLENS = "nanda2022transformerlens"


@cache
def papers() -> dict[str, str]:
    """BibTeX of every paper and of TransformerLens, by its key."""
    entries = (folder("papers") / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}


def citation(kind: str, versions: Mapping[str, str] | None = None) -> str:
    """BibTeX of the papers that a kind of result is based on, and a line with the library versions.

    Args:
        kind: such as ``"ships"``; several joined by ``+`` for results of arithmetic. A kind without papers gives
            TransformerLens only.
        versions: library names and versions, as recorded with the result; by default, the installed versions.

    >>> "2412.11965" in citation("relations")
    True
    """
    entries = dict.fromkeys(papers()[key] for part in kind.split("+") for key in kind_of(part).papers)
    libraries = versions or {name: _installed(name) for name in ("mechheads", "transformer-lens", "torch")}
    used = ", ".join(f"{name} {number}" for name, number in libraries.items())
    return "\n\n".join([*entries, papers()[_TRANSFORMERLENS], f"% Computed with {used}."])


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
