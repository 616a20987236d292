"""The settings of three papers' figures, to draw the figures with the papers' models or with others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from mechheads.data import content, names
from mechheads.files.csv_tables import write_csv
from mechheads.messages.arguments import check_known
from mechheads.studies.figures.categories import categories_figure
from mechheads.studies.figures.output import PaperFigure
from mechheads.studies.figures.request import ModelNames
from mechheads.studies.figures.roles import roles_figure
from mechheads.studies.figures.safety import safety_figure
from mechheads.units import show_bytes

_FIGURES: dict[str, tuple[Callable[..., PaperFigure], str]] = {
    "categories": (categories_figure, "relations"),
    "safety": (safety_figure, "requests"),
    "roles": (roles_figure, "tasks"),
}
"""The function of each figure, and its argument for data sets."""
_BYTES = 4


@dataclass(frozen=True)
class Recipe:
    """How a paper made a figure, from ``mh.studies.load_recipe``.

    Attributes:
        name: the name of the recipe; ``paper``: the paper and the figure.
        figure: the kind of figure: ``categories``, ``safety`` or ``roles``.
        models: the paper's models by their names on the hub, each with its number of parameters in billions.
        settings: the arguments of the figure's function.
        differs: what this package does in another way than the paper.
        printed: numbers that the paper prints, as percentages of heads.
    """

    name: str
    paper: str
    figure: str
    models: dict[str, float]
    settings: dict[str, Any]
    differs: tuple[str, ...]
    printed: pd.DataFrame

    def needs(self) -> str:
        """The memory for the weights of each model, in float32."""
        sizes = ", ".join(
            f"{name} {show_bytes(int(billions * 1e9 * _BYTES))}" for name, billions in self.models.items()
        )
        return f"{sizes}; one model at a time" + (", layer by layer" if self.settings.get("on_disk") else "")

    def compare(self, shares: pd.DataFrame) -> pd.DataFrame:
        """The printed numbers next to the same numbers of a figure.

        Args:
            shares: the table ``shares`` of ``mh.studies.roles_figure``.

        Returns:
            model, task, role, share, printed, ours, difference, in percent; without rows if no model is the paper's.
        """
        ours = shares.melt(["model", "task", "role"], ["always", "any"], "share", "ours")
        both = self.printed.rename(columns={"percent": "printed"}).merge(ours, on=["model", "task", "role", "share"])
        both["ours"] *= 100
        return both.assign(difference=both["ours"] - both["printed"])


def load_recipe(name: str) -> Recipe:
    """The recipe of a paper's figure: ``"maps"``, ``"ships"`` or ``"chg"``.

    Raises:
        ValueError: if there is no such recipe.

    >>> mh.studies.load_recipe("maps").figure
    'categories'
    """
    check_known("recipe", name, names("recipes"))
    fields = content("recipes", name)
    printed = pd.DataFrame(fields.pop("printed"), columns=["model", "task", "role", "share", "percent"])
    return Recipe(name=name, **fields | {"differs": tuple(fields["differs"]), "printed": printed})


def recipe_figure(
    recipe: str,
    models: ModelNames = None,
    *,
    data: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    quick: bool = False,
    device: str = "cpu",
    progress: bool = True,
) -> PaperFigure:
    """A paper's figure with the paper's settings, and its printed numbers next to these.

    Args:
        recipe: ``"maps"``, ``"ships"`` or ``"chg"``; see ``mh.studies.load_recipe``.
        models: other models than the paper's, as in ``mh.studies.categories_figure``. They are loaded; the weights of
            the paper's models for ``"maps"`` are read from disk layer by layer.
        data: other relations, sets of requests or tasks than the recipe's.
        out: the folder; by default, the name of the recipe. If a model and a task are the paper's, ``printed.csv``
            compares the numbers.
        quick: as in the function of the figure.
        device, progress: as in ``mh.studies.categories_figure``.

    Raises:
        ValueError: if there is no such recipe, and as in the function of the figure.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    asked = load_recipe(recipe)
    draw, argument = _FIGURES[asked.figure]
    settings = asked.settings | ({} if data is None else {argument: data})
    if models is not None and "on_disk" in settings:
        settings["on_disk"] = False
    folder = Path(recipe if out is None else out)
    if progress and models is None:
        print(f"{asked.paper}\nweights: {asked.needs()}", file=sys.stderr)
    made = draw(
        list(asked.models) if models is None else models,
        **settings,
        out=folder,
        quick=quick,
        device=device,
        progress=progress,
    )
    lines = [f"Paper      {asked.paper}", *made.lines, *(f"Differs    {what}" for what in asked.differs)]
    compared = asked.compare(made.tables["shares"]) if len(asked.printed) else pd.DataFrame()
    if not len(compared):
        return replace(made, lines=tuple(lines))
    write_csv(compared, folder / "printed.csv")
    lines.append(
        f"Printed    {len(compared)} numbers of the paper differ from these by "
        f"{compared['difference'].abs().mean():.1f} percentage points on average; see printed.csv"
    )
    return replace(
        made,
        lines=tuple(lines),
        tables={**made.tables, "printed": compared},
        files=(*made.files, folder / "printed.csv"),
    )
