"""The kinds of results in one table: what each is called, its unit, null, papers and figure.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed. So is the explorer.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any, Literal

from mechheads.data import folder

HEATMAP = "mechheads.plots.heatmap:heatmap"
EXPLORER = "mechheads.explorer.explore:explore"
CURVES = "mechheads.plots.curves:curves"
_TRANSFORMERLENS = "nanda2022transformerlens"
_PAIR_MAP, _PATH_MAP, _ROLE_MAP = (f"mechheads.plots.heatmap:{name}_map" for name in ("pair", "path", "role"))

QuestionKind = Literal["prompts", "requests", "task", "text", "weights"]
SMALLEST = {
    **dict.fromkeys(("share restored", "share lost"), 0.05),
    **dict.fromkeys(("nats", "share of attention", "share of pairs", "share of variance"), 0.1),
    "log ratio": 0.4,
    "gate": 0.5,
}
"""The smallest effect worth naming, by unit: a distance from the score of a head that does nothing."""


@dataclass(frozen=True)
class ResultKind:
    """What all results of one analysis have in common."""

    label: str = ""  # what its scores are called; empty for tables
    unit: str = ""  # empty if it depends on the metric
    papers: tuple[str, ...] = ()  # keys of papers()
    null: float | None = 0.0  # the mean score of a head that does nothing; None if there is no test
    bounds: tuple[Any, ...] | None = None  # of per-prompt values, as results.stats.Bounds.of takes them
    question: QuestionKind = "prompts"  # what the scores are evidence about
    sample: str = "prompt"  # what scores are means over
    plot: str | None = None  # without one, head scores are drawn as a heatmap and tables not at all
    needs: tuple[str, ...] = ()  # dimensions and variables that the figure draws; without them, a heatmap is


_SHARE = (0, 1, True)
_FRAMEWORK, _SHIPS, _MAPS, _CHG = ("elhage2021framework",), ("zhou2025ships",), ("elhelo2024maps",), ("nam2025chg",)
_PATCHING, _PATHS = ("zhang2024patching",), ("wang2023ioi", "goldowsky2023paths")
_ATTENTION = (*_FRAMEWORK, "kamath2025attention")
_OF_REQUESTS: dict[str, Any] = {"question": "requests", "sample": "request"}
_UNTESTED: dict[str, Any] = {**_OF_REQUESTS, "null": None, "bounds": (0, None)}
_GATES: dict[str, Any] = {"null": None, "bounds": (0, 1), "question": "task", "sample": "start"}

KINDS: dict[str, ResultKind] = {
    "activation_patch": ResultKind("Patching", "", _PATCHING, sample="pair"),
    "path_patch": ResultKind("Path", "", _PATHS, sample="pair"),
    "path_matrix": ResultKind("Path", "", _PATHS, sample="pair", plot=_PATH_MAP, needs=("receiver",)),
    "attribution": ResultKind(
        "Attribution patching", "", ("syed2023attribution", "kramar2024atp", "hanna2024faithfulness"), sample="pair"
    ),
    "ablate": ResultKind("Ablation", "", ("michel2019sixteen",)),
    "profile": ResultKind(
        "Attention",
        "share of attention",
        (*_FRAMEWORK, "olsson2022induction", "kobayashi2020norms"),
        None,
        (0, 1),
        "text",
        "window",
    ),
    "logit_attribution": ResultKind("Direct effect", "logits", (*_FRAMEWORK, "nostalgebraist2020lens", "wang2023ioi")),
    "attention_attribution": ResultKind("", "nats", _ATTENTION, plot=_PAIR_MAP),
    "attention_part": ResultKind("Part in attention", "nats", _ATTENTION),
    "relations": ResultKind("Phi", "share of pairs", _MAPS, None, _SHARE, "weights", "pair"),
    "dynamic_relations": ResultKind("Phi in context", "share of pairs", _MAPS, None, _SHARE, sample="pair"),
    "labels": ResultKind(
        "Phi",
        "share of pairs",
        _MAPS,
        None,
        None,
        "weights",
        "pair",
        "mechheads.plots.category_map:category_map",
        ("category", "member"),
    ),
    "ships": ResultKind("Ships", "nats", _SHIPS, **_UNTESTED),
    "ships_contrast": ResultKind("Ships against look-alikes", "log ratio", _SHIPS, question="requests", sample="pair"),
    "generalized_ships": ResultKind("Generalized Ships", "degrees", _SHIPS, **_UNTESTED),
    "safety": ResultKind(
        "Ships",
        "nats",
        _SHIPS,
        plot="mechheads.plots.safety_map:safety_map",
        needs=("generalized_ships",),
        **_UNTESTED,
    ),
    "sahara": ResultKind("Sahara", "degrees", _SHIPS, None, (0, None), "requests"),
    "refusal_contribution": ResultKind("Refusal Contribution", "nats", _SHIPS, **_OF_REQUESTS),
    "refusal_attribution": ResultKind("Refusal attribution", "nats", (*_SHIPS, "syed2023attribution"), **_OF_REQUESTS),
    "gates": ResultKind("Gate", "gate", _CHG, **_GATES),
    "roles": ResultKind("Gate", "gate", _CHG, **_GATES),
    "retrieval": ResultKind("Retrieval", "logits", ("gema2026locos",)),
    "examples": ResultKind("", "share of the residual stream", _FRAMEWORK),
    "patterns": ResultKind("", "share of attention"),
    "set_scores": ResultKind("", "", _PATCHING),
    "faithfulness": ResultKind("", "share", ("wang2023ioi",)),
    "faithfulness_curve": ResultKind("", "share", ("wang2023ioi",), plot=CURVES),
    "removal": ResultKind("", "accuracy", _MAPS, plot=CURVES),
    "relation_evidence": ResultKind("", "share restored", (*_MAPS, "wang2023ioi")),
    "head_group": ResultKind("", "degrees", _SHIPS),
    "refusal_test": ResultKind("", "share of answers", _SHIPS),
    "attack_curve": ResultKind("", "share of answers", _SHIPS, plot=CURVES),
    "head_roles": ResultKind("", "gate", _CHG, plot=_ROLE_MAP),
    "role_curves": ResultKind("", "nats", _CHG, plot=CURVES),
    "program_test": ResultKind("", "nats a token", ("hayes2026programs",)),
}


def kind_of(name: str) -> ResultKind:
    """The kind with this name; a kind of your own has no papers, no unit and null 0."""
    return KINDS.get(name, ResultKind())


def sample_of(name: str) -> str:
    """What scores of a kind are means over, such as "pair"; for a sum, as for its left side."""
    return kind_of(name.partition("+")[0]).sample


def draw(figure: str, *arguments: Any, **options: Any) -> Any:
    """Draw the figure with this name, as in ``ResultKind.plot``, or open the explorer."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments, **options)


@cache
def papers() -> dict[str, str]:
    """BibTeX of every paper and of TransformerLens, by its key."""
    entries = (folder("papers") / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}


def citation(kind: str, versions: Mapping[str, str] | None = None) -> str:
    """BibTeX of the papers of a kind, or of several joined by ``+``, and a line with the versions of the libraries."""
    entries = dict.fromkeys(papers()[key] for part in kind.split("+") for key in kind_of(part).papers)
    libraries = versions or {name: version(name) for name in ("mechheads", "transformer-lens", "torch")}
    used = ", ".join(f"{name} {number}" for name, number in libraries.items())
    return "\n\n".join([*entries, papers()[_TRANSFORMERLENS], f"% Computed with {used}."])
