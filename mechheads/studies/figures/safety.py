"""The figure of the Ships paper for several models: the heads on which answers to harmful requests depend."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import load
from mechheads.model.model import Model
from mechheads.model.sources import REFUSING_MODEL
from mechheads.plots.safety_map import safety_grid
from mechheads.results.html import head_names
from mechheads.safety.heads.ablations import Kind
from mechheads.safety.heads.safety_heads import SafetyHeads, compare_ablations
from mechheads.safety.requests.loaders import open_requests
from mechheads.safety.requests.prompts import TEMPLATES, Template
from mechheads.studies.figures.panels import (
    ModelNames,
    PaperFigure,
    Work,
    check_different,
    compute_panels,
    joined,
    short_names,
)
from mechheads.studies.study import short_hash, stop_if_partial

_QUICK = 8
"""Requests of each set in a first look."""
_TEXT = (
    "The {k} heads of each model whose ablation changes the next token after a request most (Ships), one marker for "
    "each ablation, coloured by Generalized Ships. Both measure any change of the answer, not only a change in "
    "refusing: a model that refuses nothing has heads here too. Hover over a marker to see scores, intervals and how "
    "often the head is among the first {k} when the requests are resampled."
)
_NAMED = 5
"""Heads of each ranking that the summary names."""


def safety_figure(
    models: ModelNames = None,
    requests: str | Path | Sequence[str | Path] = "harmful",
    *,
    out: str | Path = "safety-figure",
    ablations: Sequence[Kind] = ("undifferentiated", "scaling"),
    k: int = 10,
    template: Template = "query",
    quick: bool = False,
    device: str = "auto",
) -> PaperFigure:
    """The heads of several models on which answers to requests depend, as in the Ships paper (arXiv 2410.13708).

    One panel for each model and set of requests, with the first ``k`` heads of every ablation. Models are loaded one
    after the other, and what is finished is saved at once. After Ctrl-C, or if the process was killed, the same call
    goes on. A model or set that cannot be loaded or read is left out, with a line that says why.

    Args:
        models: as in ``mh.studies.categories_figure``; by default, ``"smollm2-135m-refusal"``.
        requests: sets of requests, as ``mh.safety.open_requests`` takes them: names such as ``"AdvBench"``, or files.
        out: the folder for the figure and its numbers, with a folder for each panel.
        ablations, k, template: as in ``mh.safety.compare_ablations``.
        quick: eight requests of each set, for a first look.
        device: as in ``mh.studies.categories_figure``.

    Raises:
        ValueError, KeyboardInterrupt: as in ``mh.studies.categories_figure``.
    """
    seed = current().seed
    names = short_names(REFUSING_MODEL if models is None else models, "models")
    sets = short_names(requests, "requests")
    _check(ablations, k, template)
    texts = {short: list(open_requests(name)) for short, name in sets.items()}
    if quick:
        texts = {short: few[:: ceil(len(few) / _QUICK)] for short, few in texts.items()}

    def compute(model: Model, data: str, place: Path) -> dict[str, SafetyHeads]:
        found = compare_ablations(model, texts[data], k, ablations=ablations, template=template)
        for scores in found.values():
            stop_if_partial(scores)
        for ablation, scores in found.items():
            scores.save(place / f"{ablation}.nc")
        return found

    panels = compute_panels(
        out,
        names,
        {short: {"requests": name, "texts": short_hash(texts[short])} for short, name in sets.items()},
        {"study": "figure of safety heads", "ablations": list(ablations), "k": k, "template": template, "seed": seed},
        Work(
            lambda name, revision: load(name, revision=revision, device=device),
            compute,
            lambda place: {ablation: SafetyHeads.load(place / f"{ablation}.nc") for ablation in ablations},
            saved=[f"{ablation}.nc" for ablation in ablations],
            tables=("heads", "top"),
        ),
    )
    several = len(sets) > 1
    shown, heads, top, lines = dict[str, dict[str, SafetyHeads]](), [], [], []
    for (model, data), found in panels.results.items():
        name = f"{model}, {data}" if several else model
        shown[name] = found
        for ablation, scores in found.items():
            about = {"model": model, "requests": data, "ablation": ablation}
            heads.append((about, scores.to_dataframe()))
            first = scores.top(k)
            top.append(({**about, "rank": range(1, len(first) + 1)}, first))
            lines.append(f"{name}, {ablation}: {', '.join(head_names(first.head(_NAMED)))}")
    whole = len(shown) == len(names) * len(sets)
    return panels.write(
        safety_grid(shown, k=k, columns=len(sets) if several and whole else None),
        shown,
        {"heads": joined(heads), "top": joined(top)},
        lines,
        title="Safety heads",
        text=_TEXT.format(k=k),
    )


def _check(ablations: Any, k: int, template: str) -> None:
    if isinstance(ablations, str):
        raise ValueError(f"ablations is {ablations!r}; give a list, such as [{ablations!r}]")
    check_different(list(ablations), "ablations")
    for i, ablation in enumerate(ablations):
        check_known(f"ablations[{i}]", ablation, Kind)
    check_at_least(1, k=k)
    check_known("template", template, TEMPLATES)
