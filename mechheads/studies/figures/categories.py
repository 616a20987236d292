"""The figure of the MAPS paper for several models: the categories of every head, from weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mechheads.labels import HeadLabels, label_heads, relation_scores
from mechheads.labels.classify import Rule
from mechheads.labels.readings import Source
from mechheads.labels.relations import CATEGORIES, in_vocabulary, load_relations
from mechheads.limits import current
from mechheads.messages.arguments import Positive, checked
from mechheads.model.model import Model
from mechheads.model.sources.default import DEFAULT_MODEL, REFUSING_MODELS
from mechheads.plots.category_map import Marks, category_map
from mechheads.studies.figures.panels import (
    ModelNames,
    PanelMaker,
    PaperFigure,
    compute_panels,
    file_hashes,
    joined,
    short_names,
)
from mechheads.studies.study import QUICK_RELATIONS, finished

_TEXT = (
    "What each head does according to its weights, for each model. A head has the colour of its category, or of the "
    "number of its categories, and is counted under that alone. "
    "phi is the share of a relation's pairs whose target is among the strongest outputs of "
    "the head for the source. {rule} Hover over a head to see the relation, phi and q."
)
_RULES = {
    "null": "A head has a category if phi of one of its relations exceeds the phi of shuffled targets by at least 0.1, "
    "at a false discovery rate of 5%.",
    "maps": "A head has a category if phi of one of its relations is at least 0.15, as in the paper.",
}


class _Categories(PanelMaker[HeadLabels]):
    saved, tables = ("relations.nc", "labels.nc"), ("counts", "heads")

    def __init__(self, relations: list[str] | None, rule: Rule, on_disk: bool, **reading: Any) -> None:
        self.relations, self.on_disk, self.reading = relations, on_disk, reading
        self.rule: Rule = rule

    def load(self, name: str, revision: str | None, max_memory: str | None = None) -> Model:
        stays = self.on_disk and not (name in REFUSING_MODELS or name.endswith(".gguf"))
        return super().load(name, revision, "least" if stays else None)

    def compute(self, model: Model, data: str, place: Path) -> HeadLabels:
        usable = None if self.relations is None else in_vocabulary(self.relations, model.tokenizer)
        scores = finished(relation_scores(model, usable, **self.reading))
        labels = label_heads(scores, rule=self.rule)
        scores.save(place / "relations.nc")
        labels.save(place / "labels.nc")
        return labels

    def read(self, place: Path) -> HeadLabels:
        return HeadLabels.load(place / "labels.nc")


@checked
def categories_figure(
    models: ModelNames = None,
    relations: str | Path | Sequence[str | Path] | None = None,
    *,
    out: str | Path = "categories-figure",
    rule: Rule = "null",
    source: Source = "all",
    min_pairs: Positive | None = None,
    on_disk: bool = False,
    quick: bool = False,
    marks: Marks = "cells",
) -> PaperFigure:
    """The categories of every head of several models, one panel for each, as in the MAPS paper (arXiv 2412.11965).

    Models are loaded one after the other, and finished panels are saved at once. After Ctrl-C, or if the process was
    killed, the same call continues. A model that cannot be loaded or read is left out, and a note says why.

    Args:
        models: names, as ``mh.load`` takes them: hub names (with ``@`` and a revision, if you like), Hugging Face
            folders and GGUF files. By default, the default model.
        relations: names of relations, or JSON files; by default, the package's. Each needs a category.
        out: the folder for the figure and its numbers, with a folder for each panel.
        rule: when a head has a category, as in ``mh.label_heads``.
        source, min_pairs: as in ``mh.relation_scores``.
        on_disk: leave all blocks on disk, as ``mh.load(max_memory="least")`` does. A GGUF file is loaded, and so is a
            model that is stored as changes to another.
        quick: four of the package's relations, for a first look.
        marks: as in ``mh.plots.category_map``.

    Raises:
        ValueError: if an argument does not fit or the folder holds another figure (raised before a model is loaded),
            or if no model could be read.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    names = short_names(DEFAULT_MODEL if models is None else models, "models")
    if relations is None and quick:
        relations = QUICK_RELATIONS
    selected = None if relations is None else list(short_names(relations, "relations").values())
    for relation in load_relations(selected):
        if relation.category is None:
            raise ValueError(
                f"relations: {relation.name!r} has no category; write its file as "
                f'{{"name": ..., "category": {CATEGORIES[0]!r}, "pairs": [...]}}, with one of '
                f"{', '.join(CATEGORIES)} or a category of your own"
            )
    settings: dict[str, Any] = {"rule": rule, "source": source, "min_pairs": min_pairs, "on_disk": on_disk}
    panels = compute_panels(
        out,
        names,
        {"": {}},
        {"study": "figure of categories", "seed": current().seed, "relations": selected}
        | {**settings, **file_hashes(selected or ())},
        _Categories(selected, **settings),
    )
    shown = {model: labels for (model, _), labels in panels.results.items()}
    counts = pd.DataFrame([{"model": name, **labels.counts(once=True)} for name, labels in shown.items()])
    heads = joined(({"model": name}, labels.table()) for name, labels in shown.items())
    figure, tables = category_map(shown, marks=marks), {"counts": counts, "heads": heads}
    return panels.write(figure, shown, tables, "Categories of heads", _TEXT.format(rule=_RULES[rule]))
