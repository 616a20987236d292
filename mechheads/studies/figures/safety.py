"""The figure of the Ships paper for several models: the heads on which answers to harmful requests depend."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from mechheads.engine.sweep import timed_plan
from mechheads.interventions.basic import UniformAttention
from mechheads.limits import Limits, Workers
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import load
from mechheads.model.model import Model
from mechheads.model.sources import REFUSING_MODEL
from mechheads.plots.safety_map import safety_grid
from mechheads.results.html import head_names
from mechheads.safety.heads.ablations import Kind
from mechheads.safety.heads.safety_heads import SafetyHeads, compare_ablations
from mechheads.safety.requests.loaders import open_requests
from mechheads.safety.requests.prompts import TEMPLATES, Template, request_prompts
from mechheads.studies.figures.output import NOT_REACHED, Drawn, PaperFigure, write_figure
from mechheads.studies.figures.panels import FigureFolder, Panels, Work, compute_panels
from mechheads.studies.figures.request import (
    FigureRequest,
    ModelNames,
    check_different,
    data_names,
    file_checksum,
    model_names,
    short_names,
    text_checksum,
)
from mechheads.studies.study import stop_if_partial

_QUICK = 8
"""Requests of each set in a first look."""
_TEXT = (
    "The {k} heads of each model whose ablation changes the next token after a request most (Ships), one marker for "
    "each ablation, coloured by Generalized Ships. Both measure any change of the answer, not only a change in "
    "refusing: a model that refuses nothing has heads here too. Hover over a marker to see scores, intervals and how "
    "often the head is among the first {k} when the requests are resampled."
)
_NAMED = 5
"""Heads of each ranking that the page and the summary name."""
_COLUMNS = ("model", "requests", "ablation", "rank", "head", "ships", "generalized_ships", "in_top")


def safety_figure(
    models: ModelNames = None,
    requests: str | Path | Sequence[str | Path] = "harmful",
    *,
    out: str | Path = "safety-figure",
    ablations: Sequence[Kind] = ("undifferentiated", "scaling"),
    k: int = 10,
    template: Template = "query",
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    progress: bool = True,
    workers: Workers | None = None,
) -> PaperFigure:
    """The heads of several models on which answers to requests depend, as in the Ships paper (arXiv 2410.13708).

    One panel for each model and set of requests, with the first ``k`` heads of every ablation. Models are loaded one
    after the other, and what is finished is saved at once. After Ctrl-C, or if the process was killed, the same call
    goes on. A model that cannot be loaded or read has its reason in its panel.

    Args:
        models: as in ``mh.studies.categories_figure``; by default, ``"smollm2-135m-refusal"``.
        requests: sets of requests, as ``mh.safety.open_requests`` takes them: names such as ``"AdvBench"``, or files.
        out: the folder for the figure, its numbers and ``figure.json``, which repeats it; see
            ``mh.studies.repeat_figure``.
        ablations, k, template: as in ``mh.safety.compare_ablations``.
        quick: eight requests of each set, for a first look.
        seed: for resampling.
        device: the device of the models.
        progress: print what is done and an estimate of the time, on stderr, with progress bars.
        workers: what computes Ships, as in ``mh.sweep``; they load each model in turn. ``figure.json`` does not hold
            them: a figure may go on with other workers, or without.

    Raises:
        ValueError: if an argument does not fit or the folder holds another figure (raised before a model is loaded),
            or if no model could be read.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    names = model_names(models, REFUSING_MODEL)
    sets = data_names(requests, "requests")
    _check(ablations, k, template)
    limits = Limits.of(None, workers)
    short = short_names(sets)
    texts = {short[name]: list(open_requests(name)) for name in sets}
    checksums = {name: _checksum(name, texts[short[name]]) for name in sets}
    if quick:
        texts = {name: few[:: ceil(len(few) / _QUICK)] for name, few in texts.items()}
    settings: dict[str, Any] = {"requests": sets, "ablations": list(ablations), "k": k, "template": template}
    request = FigureRequest.of(
        "safety",
        names,
        settings | {"quick": quick, "seed": seed},
        data=list(texts),
        checksums=checksums,
    )
    folder = FigureFolder(out, request)

    def estimate(model: Model, todo: Sequence[str]) -> float:
        prompts = [request_prompts(model, texts[data], template) for data in todo]
        return len(ablations) * sum(
            timed_plan(model, some, intervention=UniformAttention()).seconds or 0.0 for some in prompts
        )

    def compute(model: Model, data: str, place: Path) -> dict[str, SafetyHeads]:
        found = compare_ablations(
            model, texts[data], k, ablations=ablations, template=template, seed=seed, progress=progress, budget=limits
        )
        for scores in found.values():
            stop_if_partial(scores)
        for ablation, scores in found.items():
            scores.save(place / f"{ablation}.nc")
        return found

    work = Work(
        lambda name, revision: load(name, revision=revision, device=device),
        estimate,
        compute,
        lambda place: {ablation: SafetyHeads.load(place / f"{ablation}.nc") for ablation in ablations},
        limits,
    )
    panels = compute_panels(folder, work, progress=progress)
    return write_figure(folder, panels, _draw(folder, panels))


def _checksum(name: str, texts: Sequence[str]) -> str:
    return file_checksum(name) if Path(name).is_absolute() else text_checksum(texts)


def _check(ablations: Any, k: int, template: str) -> None:
    if isinstance(ablations, str):
        raise ValueError(f"ablations is {ablations!r}; give a list, such as [{ablations!r}]")
    check_different(list(ablations), "ablations")
    for i, ablation in enumerate(ablations):
        check_known(f"ablations[{i}]", ablation, get_args(Kind))
    check_at_least(1, k=k)
    check_known("template", template, TEMPLATES)


def _draw(folder: FigureFolder, panels: Panels[dict[str, SafetyHeads]]) -> Drawn:
    several, k = len(folder.request.data) > 1, folder.request.settings["k"]
    shown: dict[str, dict[str, SafetyHeads] | str] = {}
    heads, top, lines = [], [], []
    for model, data in folder.request.panels:
        name = f"{folder.names[model]}, {data}" if several else folder.names[model]
        found = shown[name] = panels.results.get((model, data), NOT_REACHED)
        if isinstance(found, str):
            continue
        for ablation, scores in found.items():
            about = {"model": folder.names[model], "requests": data, "ablation": ablation}
            heads.append(_with(about, scores.to_dataframe()))
            first = scores.top(k)
            top.append(_with({**about, "rank": range(1, len(first) + 1)}, first))
            lines.append(f"{name}, {ablation}: {', '.join(head_names(first.head(_NAMED)))}")
    best = pd.concat(top, ignore_index=True)
    named = best.loc[best["rank"] <= _NAMED].drop(columns=[] if several else "requests")
    named = (
        named.assign(head=head_names(named)).loc[:, [name for name in _COLUMNS if name in named]].reset_index(drop=True)
    )
    return Drawn(
        figure=safety_grid(shown, k=k, columns=len(folder.request.data) if several else None),
        panels=shown,
        tables={"heads": pd.concat(heads, ignore_index=True), "top": best},
        lines=tuple(lines),
        title="Safety heads",
        text=_TEXT.format(k=k),
        shown={f"The first {_NAMED} heads of each ranking": named},
    )


def _with(about: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """A table with constant columns before its own."""
    return pd.concat([pd.DataFrame(about, index=table.index), table], axis=1)
