"""The kinds of results in one table: what each is called, its unit, null, papers and figure; and names as headings.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed. The explorer is named so too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from mechheads.data import folder

HEATMAP = "mechheads.plots.heatmap:heatmap"
EXPLORER = "mechheads.explorer.explore:explore"
OPEN = ".explore() shows it in a page of all heads"
CURVES = "mechheads.plots.curves:curves"
_TRANSFORMERLENS = "nanda2022transformerlens"
_PAIR_MAP, _PATH_MAP, _ROLE_MAP = (f"mechheads.plots.heatmap:{name}_map" for name in ("pair", "path", "role"))

QuestionKind = Literal["prompts", "requests", "task", "text", "weights"]
GROUPS: dict[QuestionKind, str] = {
    "prompts": "In tasks",
    "requests": "In refusals",
    "task": "Roles",
    "text": "On text",
    "weights": "By weights",
}
"""The headings under which columns stand, by what the scores are evidence about."""
SMALLEST = {
    **dict.fromkeys(("share restored", "share lost"), 0.05),
    **dict.fromkeys(("nats", "share of attention", "share of pairs", "share of variance"), 0.1),
    "log ratio": 0.4,
    "gate": 0.5,
}
"""The smallest effect worth naming beyond what a head that does nothing has, by the unit."""


@dataclass(frozen=True)
class ResultKind:
    """What all results of one analysis have in common.

    Attributes:
        label, meaning: what its scores are called, and what they measure.
        unit: the unit of the numbers; empty if it depends on the metric.
        papers: keys of ``papers()``.
        null: the mean score of a head that does nothing, for p and q values; ``None`` if there is no test.
        bounds, share: between what per-prompt values lie, and whether each is a yes or no; see ``results.bounded``.
        question, sample: what the scores are evidence about, and what each value is of that they are means over.
        plot: the figure, as "module:function"; with ``None``, head scores are drawn as a heatmap and tables not at all.
        dims, needs: the extra dimensions of head scores that the figure draws, and further variables that it reads.
            Head scores without these are drawn as a heatmap.
        caution: what may not be concluded.
    """

    label: str = ""
    meaning: str = ""
    unit: str = ""
    papers: tuple[str, ...] = ()
    null: float | None = 0.0
    bounds: tuple[float | None, float | None] | None = None
    share: bool = False
    question: QuestionKind = "prompts"
    sample: str = "prompt"
    plot: str | None = None
    dims: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    caution: str = ""


_PATHS: dict[str, Any] = {"papers": ("wang2023ioi", "goldowsky2023paths"), "sample": "pair"}
_PATH = "The effect of one path from the head to a receiver, if all other heads keep their values."
_ATTENTION: dict[str, Any] = {"unit": "nats", "papers": ("elhage2021framework", "kamath2025attention")}
_MAPS: dict[str, Any] = {"unit": "share of pairs", "papers": ("elhelo2024maps",), "null": None, "sample": "pair"}
_REQUESTS: dict[str, Any] = {"papers": ("zhou2025ships",), "question": "requests", "sample": "request"}
_SHIPS: dict[str, Any] = {**_REQUESTS, "null": None, "bounds": (0.0, None)}
_OF_SHIPS = "The KL divergence of the next token's distribution after a request from that without the head."
_ANY_CHANGE = "Ships counts any change of the answer, not only changes of refusing; look-alikes are its control."
_GATES: dict[str, Any] = {"unit": "gate", "papers": ("nam2025chg",), "null": None, "bounds": (0, 1)}
_GATES |= {
    "question": "task",
    "sample": "start",
    "meaning": "How far the gate of the head holds its role after the fits.",
}
_ANSWERS: dict[str, Any] = {"unit": "share of answers", "papers": ("zhou2025ships",)}

KINDS: dict[str, ResultKind] = {
    "activation_patch": ResultKind(
        "Patching",
        "The effect of one head's activation from the other run.",
        papers=("zhang2024patching",),
        sample="pair",
        caution="Patching is about these prompts: a head without an effect may matter in others, or have a backup.",
    ),
    "path_patch": ResultKind("Path", _PATH, **_PATHS),
    "path_matrix": ResultKind("Path", _PATH, plot=_PATH_MAP, dims=("receiver",), **_PATHS),
    "attribution": ResultKind(
        "Attribution patching",
        "An estimate, from gradients, of the effect of patching one head.",
        papers=("syed2023attribution", "kramar2024atp", "hanna2024faithfulness"),
        sample="pair",
        caution="Attribution patching is an estimate: where a head saturates, its effect can be far from it.",
    ),
    "ablate": ResultKind(
        "Ablation",
        "The effect of replacing one head's output.",
        papers=("michel2019sixteen",),
        caution="Other heads can stand in for one that is ablated: little change does not say that it does nothing.",
    ),
    "profile": ResultKind(
        "Attention",
        "The share of attention, on ordinary text, that goes to such tokens.",
        "share of attention",
        ("elhage2021framework", "olsson2022induction", "kobayashi2020norms"),
        None,
        (0, 1),
        question="text",
        sample="window",
        caution="Attention is not importance: what a head attends to most it may not move at all.",
    ),
    "logit_attribution": ResultKind(
        "Direct effect",
        "What the head itself adds to the logits of the answer, with the final norm frozen.",
        "logits",
        ("elhage2021framework", "nostalgebraist2020lens", "wang2023ioi"),
    ),
    "attention_attribution": ResultKind(plot=_PAIR_MAP, **_ATTENTION),
    "attention_part": ResultKind(
        "Part in attention",
        "What the head itself adds to the score before softmax, with the norms frozen.",
        **_ATTENTION,
    ),
    "relations": ResultKind(
        "Phi",
        "The share of a relation's pairs whose target is among the strongest outputs of the head, by its weights.",
        bounds=(0, 1),
        share=True,
        question="weights",
        **_MAPS,
    ),
    "dynamic_relations": ResultKind(
        "Phi in context",
        "The share of a relation's pairs whose target is among the strongest outputs of the head, in context.",
        bounds=(0, 1),
        share=True,
        **_MAPS,
    ),
    "labels": ResultKind(
        "Phi",
        "The share of the best relation's pairs that the weights of the head map from source to target.",
        question="weights",
        plot="mechheads.plots.category_map:category_map",
        dims=("category",),
        needs=("member",),
        caution="A category is about weights and single tokens, not about what the head does in context.",
        **_MAPS,
    ),
    "ships": ResultKind("Ships", _OF_SHIPS, "nats", caution=_ANY_CHANGE, **_SHIPS),
    "ships_contrast": ResultKind(
        "Ships against look-alikes",
        "The logarithm of Ships after a request, less that of Ships after its harmless look-alike.",
        "log ratio",
        **_REQUESTS | dict[str, Any](sample="pair"),
    ),
    "generalized_ships": ResultKind(
        "Generalized Ships", "The angle by which the states of all requests turn without the head.", "degrees", **_SHIPS
    ),
    "safety": ResultKind(
        "Ships",
        _OF_SHIPS,
        "nats",
        plot="mechheads.plots.safety_map:safety_map",
        needs=("generalized_ships",),
        caution=_ANY_CHANGE,
        **_SHIPS,
    ),
    "sahara": ResultKind(
        "Sahara",
        "How far the states of all requests turn if this head is ablated beside those that were chosen before.",
        "degrees",
        **_SHIPS | dict[str, Any](sample="prompt"),
    ),
    "refusal_contribution": ResultKind(
        "Refusal Contribution", "How far the head raises the beginning of a refusal.", "nats", **_REQUESTS
    ),
    "refusal_attribution": ResultKind(
        "Refusal attribution",
        "An estimate, from gradients, of how far refusals depend on the head.",
        "nats",
        **_REQUESTS | dict[str, Any](papers=("zhou2025ships", "syed2023attribution")),
    ),
    "gates": ResultKind("Gate", **_GATES),
    "roles": ResultKind("Gate", caution="Roles come from short fits, and the three from the same gates.", **_GATES),
    "retrieval": ResultKind(
        "Retrieval",
        "What the head writes to an answer from its place in the prompt, less what it writes from other tokens.",
        "logits",
        ("gema2026locos",),
    ),
    "examples": ResultKind(unit="share of the residual stream", papers=("elhage2021framework",)),
    "patterns": ResultKind(unit="share of attention"),
    "set_scores": ResultKind(papers=("zhang2024patching",)),
    "faithfulness": ResultKind(unit="share", papers=("wang2023ioi",)),
    "faithfulness_curve": ResultKind(unit="share", papers=("wang2023ioi",), plot=CURVES),
    "removal": ResultKind(unit="accuracy", papers=("elhelo2024maps",), plot=CURVES),
    "relation_evidence": ResultKind(unit="share restored", papers=("elhelo2024maps", "wang2023ioi")),
    "head_group": ResultKind(unit="degrees", papers=("zhou2025ships",)),
    "refusals": ResultKind(**_ANSWERS | dict[str, Any](papers=("zhou2025ships", "syed2023attribution"))),
    "refusal_test": ResultKind(**_ANSWERS),
    "attack_curve": ResultKind(plot=CURVES, **_ANSWERS),
    "head_roles": ResultKind(unit="gate", papers=("nam2025chg",), plot=_ROLE_MAP),
    "role_curves": ResultKind(unit="nats", papers=("nam2025chg",), plot=CURVES),
    "program_test": ResultKind(unit="nats a token", papers=("hayes2026programs",)),
}


def kind_of(name: str) -> ResultKind:
    """The kind with this name. A name that is not in the table is your own kind: no papers, no unit, null 0.

    >>> kind_of("ships").unit, kind_of("my own").null
    ('nats', 0.0)
    """
    return KINDS.get(name, ResultKind())


def sample_of(name: str) -> str:
    """What each of the values is of that scores of a kind are means over.

    >>> from mechheads.results.kinds import sample_of
    >>> sample_of("activation_patch"), sample_of("ships"), sample_of("my own")
    ('pair', 'request', 'prompt')
    """
    return kind_of(name.partition("+")[0]).sample


def draw(figure: str, *what: Any, **options: Any) -> Any:
    """Draw the figure with this name, as in ``ResultKind.plot``, or open the explorer."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*what, **options)


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


LEAST_REFUSAL = 0.1
"""A model that refuses a smaller share of harmful requests counts as not refusing; of openings with a smaller mean
probability there is a warning."""
_LONGEST = 80


def titled(name: str, about: Mapping[str, Any]) -> str:
    """The name of a result, with the heads that were ablated all the time, and how, by its provenance.

    >>> from mechheads.results.kinds import titled
    >>> titled("Patching", {"given": {"L0H1": "Zero()", "L2H3": "Zero()", "L4H0": "Mean()"}})
    'Patching, given L0H1 and L2H3 (Zero()), L4H0 (Mean())'
    """
    given, by_rule = about.get("given"), dict[str, list[str]]()
    for head, rule in given.items() if isinstance(given, Mapping) else ():
        by_rule.setdefault(shortened(rule), []).append(head)
    held = ", ".join(f"{' and '.join(heads)} ({rule})" for rule, heads in by_rule.items())
    return f"{name}, given {held}" if held else name


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a heading."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def heading(text: str) -> str:
    """The text as a heading, with a capital letter."""
    return text[:1].upper() + text[1:]


def refuses(refused: Mapping[str, Any] | None) -> bool | None:
    """Whether a model refuses enough to speak of refusals, by ``provenance["refused"]``; None if nothing was judged."""
    return None if refused is None or not refused["of"] else refused["n"] >= LEAST_REFUSAL * refused["of"]


def refused_of(refused: Mapping[str, Any] | None) -> str:
    """How many requests a model refused, such as "refused 0 of 8, 2 not judged"; empty if nothing was asked."""
    if refused is None:
        return ""
    unjudged = refused.get("unjudged", 0)
    return f"refused {refused['n']} of {refused['of']}" + (f", {unjudged} not judged" if unjudged else "")
