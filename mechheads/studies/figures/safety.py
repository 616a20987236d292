"""The figure of the Ships paper for several models: the heads on which answers to harmful requests depend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from mechheads.interventions.basic import InterventionName
from mechheads.limits import current
from mechheads.messages.arguments import Positive, check_known, checked
from mechheads.model.model import Model
from mechheads.model.sources.default import REFUSING_MODEL
from mechheads.plots.safety_map import NAMES, SYMBOLS, heads_title, safety_grid
from mechheads.results.shown import ranks
from mechheads.safety.heads.ablations import PAPER_KINDS, ablation_of
from mechheads.safety.heads.safety_heads import SafetyHeads, ShipsScore, compare_ablations
from mechheads.safety.requests import Template, load_requests
from mechheads.studies.figures.panels import (
    ModelNames,
    Panel,
    PanelMaker,
    PaperFigure,
    check_different,
    compute_panels,
    joined,
    short_names,
)
from mechheads.studies.study import finished, short_hash

_QUICK = 8
"""Requests of each set in a first look."""
Layout = Literal["requests", "ablation"]
_SCORES: dict[str, tuple[ShipsScore, str]] = {
    "ships": ("ships", "changes the next token after a request most (Ships)"),
    "generalized": ("generalized_ships", "turns the states after all requests together most (Generalized Ships)"),
}
"""Each score that ranks heads: its name in ``mh.safety.compare_ablations``, and what it measures, in words."""
_TEXT = (
    "The {k} heads of each model whose ablation {does}, one marker for each {marked}, coloured by Generalized Ships. "
    "Both scores measure any change of the answer, not only a change in refusing: a model that refuses nothing has "
    "heads here too. Hover over a marker to see scores, intervals and how often the head is among the first {k} when "
    "the requests are resampled."
)
Requests = str | Path | Sequence[str | Path] | Mapping[str, Sequence[str]]
_Results = Mapping[Panel, Mapping[str, SafetyHeads]]
_Drawn = tuple[dict[str, dict[str, SafetyHeads]], dict[str, str], str]
"""Panels by name, a heading for each, and the title of the figure."""


class _Safety(PanelMaker[dict[str, SafetyHeads]]):
    tables = ("refused", "top", "heads")

    def __init__(self, texts: Mapping[str, Sequence[str]], ablations: Sequence[InterventionName], **more: Any) -> None:
        self.texts, self.ablations, self.options = texts, ablations, more
        self.saved = [f"{ablation}.nc" for ablation in ablations]

    def compute(self, model: Model, data: str, place: Path) -> dict[str, SafetyHeads]:
        by_ablation = compare_ablations(model, self.texts[data], ablations=self.ablations, **self.options)
        for scores in by_ablation.values():
            finished(scores)
        for ablation, scores in by_ablation.items():
            scores.save(place / f"{ablation}.nc")
        return by_ablation

    def read(self, place: Path) -> dict[str, SafetyHeads]:
        return {ablation: SafetyHeads.load(place / f"{ablation}.nc") for ablation in self.ablations}


@checked
def safety_figure(
    models: ModelNames = None,
    requests: Requests = "harmful",
    *,
    out: str | Path = "safety-figure",
    by: Layout = "requests",
    score: Literal["ships", "generalized"] = "ships",
    ablations: Sequence[InterventionName] = PAPER_KINDS,
    k: Positive = 10,
    template: Template = "query",
    quick: bool = False,
) -> PaperFigure:
    """The heads of several models on which answers to requests depend, as in the Ships paper (arXiv 2410.13708).

    The paper's figure has two layouts, and both show the first ``k`` heads of each model, ablation and set of requests.
    Models are loaded one after the other, and finished panels are saved at once. After Ctrl-C, or if the process was
    killed, the same call continues, and the other layout reuses the same panels. A model or set that cannot be loaded
    or read is left out, and a note says why.

    Args:
        models: as in ``mh.studies.categories_figure``; by default, ``"smollm2-135m-refusal"``.
        requests: names such as ``"AdvBench"`` and files, as ``mh.safety.load_requests`` takes them; or texts by the
            names of sets.
        out: the folder for the figure and its numbers, with a folder for each panel.
        by: ``"requests"``: a panel for each model and set of requests, with a marker for each ablation.
            ``"ablation"``: a panel for each ablation and set of requests, with a marker for each model.
        score: the score that ranks the heads: ``"ships"``, or ``"generalized"`` for Generalized Ships, which gives the
            colours in either case.
        ablations, k, template: as in ``mh.safety.compare_ablations``.
        quick: eight requests of each set, for a first look.
    """
    names = short_names(REFUSING_MODEL if models is None else models, "models")
    sets = short_names(requests, "requests")
    _check(ablations)
    if by == "ablation" and len(names) > len(SYMBOLS):
        raise ValueError(
            f"models has {len(names)} models, but there are only {len(SYMBOLS)} markers for one panel; give fewer, or "
            'choose by="requests"'
        )
    ranking, does = _SCORES[score]
    texts = {
        short: list(load_requests(part) if isinstance(part, (str, Path)) else part) for short, part in sets.items()
    }
    if quick:
        texts = {short: few[:: ceil(len(few) / _QUICK)] for short, few in texts.items()}
    options: dict[str, Any] = {"ablations": list(ablations), "score": ranking, "k": k, "template": template}
    panels = compute_panels(
        out,
        names,
        {short: {"requests": short, "texts": short_hash(texts[short])} for short in sets},
        {"study": "figure of safety heads", "seed": current().seed, **options},
        _Safety(texts, **options),
    )
    several = len(sets) > 1
    shown, headings, title = (_by_requests if by == "requests" else _by_ablation)(panels.results, list(sets), k)
    whole = len(panels.results) == len(names) * len(sets)
    columns = len(sets) if by == "requests" else len(ablations)
    figure = safety_grid(
        {headings[name]: panel for name, panel in shown.items()},
        title=title,
        columns=columns if several and whole else None,
    )
    text = _TEXT.format(k=k, does=does, marked="ablation" if by == "requests" else "model")
    return panels.write(figure, shown, _numbers(panels.results, k), "Heads that answers to requests depend on", text)


def _numbers(results: _Results, k: int) -> dict[str, pd.DataFrame]:
    """The tables of a figure."""
    heads, top, refused = [], [], []
    for (model, data), by_ablation in results.items():
        if counted := next(iter(by_ablation.values())).provenance.get("refused"):
            refused.append({"model": model, "requests": data, "refused": counted["n"], "of": counted["of"]})
        for ablation, scores in by_ablation.items():
            labels = {"model": model, "requests": data, "ablation": ablation}
            heads.append((labels, scores.to_dataframe()))
            first = scores.top(k)
            top.append(({**labels, "rank": ranks(first["score"])}, first))
    return {"refused": pd.DataFrame(refused), "top": joined(top), "heads": joined(heads)}


def _by_requests(results: _Results, sets: Sequence[str], k: int) -> _Drawn:
    """A panel for each model and set of requests, with the ablations in it."""
    models = list(dict.fromkeys(model for model, _ in results))
    shown, headings = dict[str, dict[str, SafetyHeads]](), dict[str, str]()
    for (model, data), by_ablation in results.items():
        name = f"{model}, {data}" if len(sets) > 1 else model
        shown[name] = dict(by_ablation)
        suffix = f" of {model}" if len(models) > 1 else ""
        headings[name] = f"{heads_title(list(by_ablation.values()))}{suffix} on {_requests(data)}"
    return shown, headings, " and ".join(models) if len(models) < 3 else f"{len(models)} models"


def _by_ablation(results: _Results, sets: Sequence[str], k: int) -> _Drawn:
    """A panel for each ablation and set of requests, with the models in it."""
    shown, headings = dict[str, dict[str, SafetyHeads]](), dict[str, str]()
    for data in sets:
        of_set = {model: scores for (model, other), scores in results.items() if other == data}
        for ablation in next(iter(of_set.values()), {}):
            name = f"{ablation}, {data}" if len(sets) > 1 else ablation
            shown[name] = {model: scores[ablation] for model, scores in of_set.items()}
            headings[name] = NAMES.get(ablation, ablation) + (f" on {_requests(data)}" if len(sets) > 1 else "")
    first = heads_title([scores for by_ablation in results.values() for scores in by_ablation.values()])
    return shown, headings, f"{first} on {' and '.join(map(_requests, sets))}"


def _requests(name: str) -> str:
    return "harmful requests" if name == "harmful" else name


def _check(ablations: Any) -> None:
    if isinstance(ablations, str):
        raise ValueError(f"ablations is {ablations!r}; give a list, such as [{ablations!r}]")
    check_different(list(ablations), "ablations")
    for i, ablation in enumerate(ablations):
        check_known(f"ablations[{i}]", ablation, InterventionName)
        ablation_of(ablation, f"ablations[{i}]")
