"""The figures by their names, as ``figure.json`` and recipes say them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mechheads.limits import Workers
from mechheads.studies.figures.categories import categories_figure
from mechheads.studies.figures.output import PaperFigure
from mechheads.studies.figures.roles import roles_figure
from mechheads.studies.figures.safety import safety_figure


@dataclass(frozen=True)
class Kind:
    """A figure that can be drawn from its name.

    Attributes:
        draw: the function of the figure.
        data: its argument for data sets.
        runs: whether it runs models, which workers can do; a figure that does not only reads their weights.
    """

    draw: Callable[..., PaperFigure]
    data: str
    runs: bool = True

    def options(self, workers: Workers | None) -> dict[str, Any]:
        """The arguments of ``draw`` that pass workers on.

        Raises:
            ValueError: if there are workers, and nothing that they can do.
        """
        if workers is None:
            return {}
        if not self.runs:
            raise ValueError(f"workers is {workers!r}, but this figure only reads weights; leave workers out")
        return {"workers": workers}


KINDS: dict[str, Kind] = {
    "categories": Kind(categories_figure, "relations", runs=False),
    "safety": Kind(safety_figure, "requests"),
    "roles": Kind(roles_figure, "tasks"),
}
