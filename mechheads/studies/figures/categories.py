"""The figure of the MAPS paper for several models: the categories of every head, from weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from mechheads.labels import HeadLabels, label_heads, relation_scores
from mechheads.labels.classify import Rule
from mechheads.labels.readings import SOURCES, Source
from mechheads.labels.relations import CATEGORIES, load_relations
from mechheads.labels.usable_pairs import in_vocabulary
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import load
from mechheads.model.model import Model
from mechheads.model.sources import DEFAULT_MODEL, REFUSING_MODELS, default_folder
from mechheads.model.stored_weights import StoredWeights, open_weights
from mechheads.plots.category_map import category_map
from mechheads.studies.figures.output import NOT_REACHED, Drawn, PaperFigure, write_figure
from mechheads.studies.figures.panels import FigureFolder, Panels, Work, compute_panels
from mechheads.studies.figures.request import (
    FigureRequest,
    ModelNames,
    check_different,
    file_checksum,
    full_path,
    model_names,
)
from mechheads.studies.study import QUICK_RELATIONS, stop_if_partial

_TEXT = (
    "What each head does according to its weights, for each model. A head has the colour of its category, or of the "
    "number of its categories. phi is the share of a relation's pairs whose target is among the strongest outputs of "
    "the head for the source. {rule} Hover over a head to see the relation, phi and q."
)
_RULES = {
    "null": "A head has a category if phi of one of its relations exceeds the phi of shuffled targets by at least 0.1, "
    "at a false discovery rate of 5%.",
    "maps": "A head has a category if phi of one of its relations is at least 0.15, as in the paper.",
}


def categories_figure(
    models: ModelNames = None,
    relations: str | Path | Sequence[str | Path] | None = None,
    *,
    out: str | Path = "categories-figure",
    rule: Rule = "null",
    source: Source = "all",
    min_pairs: int = 30,
    on_disk: bool = False,
    quick: bool = False,
    device: str = "cpu",
    progress: bool = True,
) -> PaperFigure:
    """The categories of every head of several models, one panel for each, as in the MAPS paper (arXiv 2412.11965).

    Models are loaded one after the other, and what is finished is saved at once. After Ctrl-C, or if the process was
    killed, the same call goes on. A model that cannot be loaded or read has its reason in its panel.

    Args:
        models: names, as ``mh.load`` takes them: hub names (with ``@`` and a revision, if you like), Hugging Face
            folders and GGUF files. By default, the default model.
        relations: names of relations, or JSON files, also the public ones of the paper; by default, all relations of
            the package. Each needs a category.
        out: the folder for the figure, its numbers and ``figure.json``, which repeats it; see
            ``mh.studies.repeat_figure``.
        rule: what gives a category, as in ``mh.label_heads``.
        source, min_pairs: as in ``mh.relation_scores``.
        on_disk: read the weights from safetensors layer by layer, without loading the models. A GGUF file is loaded,
            and so is a model that is stored as changes to another.
        quick: four of the package's relations, for a first look.
        device: the device of the models.
        progress: print what is done, on stderr, with progress bars.

    Raises:
        ValueError: if an argument does not fit or the folder holds another figure (raised before a model is loaded),
            or if no model could be read.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    names = model_names(models, DEFAULT_MODEL)
    asked = _relation_names(relations, quick)
    checksums = _check(asked, rule, source, min_pairs)
    settings: dict[str, Any] = {"rule": rule, "source": source, "min_pairs": min_pairs, "on_disk": on_disk}
    request = FigureRequest.of("categories", names, settings | {"relations": asked}, checksums=checksums)
    folder = FigureFolder(out, request)

    def open_model(name: str, revision: str | None) -> Model | StoredWeights:
        if on_disk and not (name in REFUSING_MODELS or name.endswith(".gguf")):
            return open_weights(default_folder() if name == DEFAULT_MODEL else name, revision=revision)
        return load(name, revision=revision, device=device)

    def compute(model: Model | StoredWeights, _: str, place: Path) -> HeadLabels:
        usable = None if asked is None else in_vocabulary(load_relations(asked), model.tokenizer)
        scores = relation_scores(model, usable, min_pairs=min_pairs, source=source, progress=progress)
        stop_if_partial(scores)
        labels = label_heads(scores, rule=rule)
        scores.save(place / "relations.nc")
        labels.save(place / "labels.nc")
        return labels

    work = Work(open_model, lambda *_: None, compute, lambda place: HeadLabels.load(place / "labels.nc"))
    panels = compute_panels(folder, work, progress=progress)
    return write_figure(folder, panels, _draw(folder, panels))


def _relation_names(relations: Any, quick: bool) -> list[str] | None:
    if relations is None:
        return list(QUICK_RELATIONS) if quick else None
    listed = [relations] if isinstance(relations, (str, Path)) else list(relations)
    if strange := [one for one in listed if not isinstance(one, (str, Path))]:
        raise ValueError(
            f"relations contains a {type(strange[0]).__name__}; give names and JSON files, so that figure.json can "
            "repeat the figure"
        )
    return [full_path(one) for one in listed]


def _check(relations: list[str] | None, rule: str, source: str, min_pairs: int) -> dict[str, str]:
    """Checksums of the relations' files, after a check of the arguments."""
    check_known("rule", rule, get_args(Rule))
    check_known("source", source, SOURCES)
    check_at_least(1, min_pairs=min_pairs)
    if relations is not None:
        check_different(relations, "relations")
    for relation in load_relations(relations):
        if relation.category is None:
            raise ValueError(
                f"relations: {relation.name!r} has no category; write its file as "
                f'{{"name": ..., "category": {CATEGORIES[0]!r}, "pairs": [...]}}, with one of '
                f"{', '.join(CATEGORIES)} or a category of your own"
            )
    return {name: file_checksum(name) for name in relations or () if Path(name).is_absolute()}


def _draw(folder: FigureFolder, panels: Panels[HeadLabels]) -> Drawn:
    shown = {folder.names[model]: panels.results.get((model, ""), NOT_REACHED) for model in folder.request.models}
    read = {name: labels for name, labels in shown.items() if not isinstance(labels, str)}
    tables = [labels.table().assign(model=name) for name, labels in read.items()]
    heads = pd.concat(tables, ignore_index=True)
    heads.insert(0, "model", heads.pop("model"))
    counts = pd.DataFrame([{"model": name, **labels.counts()} for name, labels in read.items()])
    lines = [
        f"{name}: " + ", ".join(f"{what} {n}" for what, n in labels.counts().items()) for name, labels in read.items()
    ]
    wanted = [relation.name for relation in load_relations(folder.request.settings["relations"])]
    for name, labels in read.items():
        scored = labels.dataset["relation"].values.tolist()
        if skipped := [relation for relation in wanted if relation not in scored]:
            few = folder.request.settings["min_pairs"]
            lines.append(
                f"Note       {name}: relations with fewer than {few} single-token pairs are left out: "
                f"{', '.join(skipped)}"
            )
    return Drawn(
        figure=category_map(shown),
        panels=shown,
        tables={"heads": heads, "counts": counts},
        lines=tuple(lines),
        title="Categories of heads",
        text=_TEXT.format(rule=_RULES[folder.request.settings["rule"]]),
        shown={"Heads of each category": counts},
    )
