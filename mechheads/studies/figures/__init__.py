"""The figures of three papers for several models, and the settings of the papers to draw them with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechheads.data import content, names
from mechheads.io.write import write_csv
from mechheads.messages.arguments import check_known
from mechheads.studies.figures.categories import categories_figure
from mechheads.studies.figures.panels import PRINTED, ModelNames, PaperFigure
from mechheads.studies.figures.roles import roles_figure
from mechheads.studies.figures.safety import safety_figure

_DIMENSIONS: dict[str, list[str]] = {
    "categories": ["model", "relation"],
    "safety": [],
    "roles": ["model", "task", "role", "share"],
}
"""The columns that identify a printed number of each figure; for safety heads, the paper prints none."""
FIGURES: dict[str, tuple[Callable[..., PaperFigure], str]] = {
    "categories": (categories_figure, "relations"),
    "safety": (safety_figure, "requests"),
    "roles": (roles_figure, "tasks"),
}
"""The function of each figure, and its argument for data sets."""


@dataclass(frozen=True)
class Recipe:
    """How a paper made a figure, from ``mh.studies.load_recipe``.

    Attributes:
        name: the name of the recipe; ``paper``: the paper and the figure.
        figure: the kind of figure: ``categories``, ``safety`` or ``roles``.
        models: the names of the paper's models on the hub.
        settings: the arguments of the figure's function.
        differs: how this package differs from the paper.
        printed: numbers that the paper prints: for categories, the largest phi of each relation; for roles, the
            percentage of heads that have a role in every seed, or in some seed.
    """

    name: str
    paper: str
    figure: str
    models: tuple[str, ...]
    settings: dict[str, Any]
    differs: tuple[str, ...]
    printed: pd.DataFrame

    def compare(self, made: PaperFigure) -> pd.DataFrame:
        """The printed numbers next to the same numbers of a figure.

        Returns:
            A table with printed, ours and difference, by model and relation, or by model, task, role and share; without
            rows if no model is the paper's, or no relation or task.
        """
        both = self.printed
        if len(both):
            both = both.merge(_ours(self.figure, made), on=_DIMENSIONS[self.figure])
            both["difference"] = both["ours"] - both["printed"]
        return both


def load_recipe(name: str) -> Recipe:
    """The models, data and settings of a paper's figure.

    Args:
        name: ``"maps"``, ``"ships"`` or ``"chg"``.

    >>> mh.studies.load_recipe("maps").figure
    'categories'
    """
    check_known("recipe", name, names("recipes"))
    fields = content("recipes", name)
    fields |= {name: tuple(fields[name]) for name in ("models", "differs")}
    fields["printed"] = pd.DataFrame(fields["printed"], columns=[*_DIMENSIONS[fields["figure"]], "printed"])
    return Recipe(name=name, **fields)


def _ours(figure: str, made: PaperFigure) -> pd.DataFrame:
    """A figure's values of the numbers that the paper prints."""
    if figure == "roles":
        shares = made.tables["shares"].melt(["model", "task", "role"], ["always", "any"], "share", "ours")
        return shares.assign(ours=100 * shares["ours"])
    largest = [
        (model, relation, phi)
        for model, labels in made.panels.items()
        for relation, phi in labels.dataset["phi"].max(("layer", "head")).to_series().items()
    ]
    return pd.DataFrame(largest, columns=["model", "relation", "ours"])


def recipe_figure(
    recipe: str,
    models: ModelNames = None,
    *,
    data: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    quick: bool = False,
) -> PaperFigure:
    """A paper's figure with the paper's settings, and its printed numbers next to these.

    Args:
        recipe: ``"maps"``, ``"ships"`` or ``"chg"``; see ``mh.studies.load_recipe``.
        models: other models than the paper's, as in ``mh.studies.categories_figure``. For ``"maps"``, weights in
            safetensors are read from disk layer by layer.
        data: other relations, sets of requests or tasks than the recipe's.
        out: the folder; by default, the name and ``-figure``. If a model and a relation or task are the paper's,
            ``printed.csv`` compares the numbers.
        quick: as in the function of the figure.
    """
    loaded = load_recipe(recipe)
    draw, argument = FIGURES[loaded.figure]
    settings = loaded.settings | ({} if data is None else {argument: data})
    folder = Path(f"{recipe}-figure" if out is None else out)
    made = draw(loaded.models if models is None else models, **settings, out=folder, quick=quick)
    made = replace(made, notes=(loaded.paper, *loaded.differs, *made.notes))
    compared = loaded.compare(made)
    if not len(compared):
        return made
    write_csv(compared, folder / PRINTED)
    return replace(made, tables={**made.tables, "printed": compared}, files=(*made.files, folder / PRINTED))
