"""The figure of the causal head gating paper for several models and tasks: curves that test the roles of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from mechheads.gating import FitSettings, Gates, fit_gates, head_roles, role_curve
from mechheads.gating.task import Task, some_items
from mechheads.gating.tasks import needs_model, task_of
from mechheads.ledger.key import mark
from mechheads.limits import current, settings
from mechheads.messages.arguments import AboveZero, Positive, Within, checked
from mechheads.model.model import Model
from mechheads.model.sources.default import DEFAULT_MODEL
from mechheads.plots.curves import curves as draw_curves
from mechheads.results.tables import Curves
from mechheads.studies.figures.panels import (
    ModelNames,
    PanelMaker,
    PaperFigure,
    compute_panels,
    file_hashes,
    joined,
    short_names,
)
from mechheads.studies.study import finished, remove_files

_QUICK: dict[str, int] = {"seeds": 2, "updates": 20, "n": 40, "most": 20}
_QUICK_FIT: dict[str, Any] = {"batch": 8, "fit": FitSettings(lr=(0.3, 0.03), lr_regularised=(0.5, 0.05))}
_TEXT = (
    "How the log-probability of a task's targets changes when the first k heads of a role are gated off rather than "
    "on: a row for each task, a column for each model. All other gates come from the fit that pulls gates open. Heads "
    "that facilitate the task should take the curve below 0, heads that interfere above 0, and irrelevant heads should "
    "leave it near 0. Grey: random orders of heads. The items were not among those to which the gates were fitted."
)


Tasks = str | Path | Sequence[str | Path] | Mapping[str, Task]


class _Roles(PanelMaker[tuple[Gates, Curves]]):
    saved, tables = ("gates.nc", "curves.nc", "gates.ledger"), ("shares", "curves", "heads")

    def __init__(self, tasks: Mapping[str, Any], n: int | None, most: int, quick: bool, **fit: Any) -> None:
        self.tasks, self.n, self.most, self.quick, self.fit, self.draws = tasks, n, most, quick, fit, 5
        if quick:
            self.fit = {name: min(value, _QUICK[name]) for name, value in fit.items()} | _QUICK_FIT
            self.most, self.draws = min(most, _QUICK["most"]), 2
        self.fit["seeds"] = range(current().seed * self.fit["seeds"], (current().seed + 1) * self.fit["seeds"])

    def task(self, name: str, model: Model | None = None) -> Task:
        """The items of a task, by its short name."""
        task, seed = self.tasks[name], current().seed
        if not isinstance(task, Task):
            return task_of(task, model=model, n=self.n, seed=seed)
        return task if self.n is None else some_items(task, self.n, seed)

    def compute(self, model: Model, data: str, place: Path) -> tuple[Gates, Curves]:
        """Fit the gates and test their roles; a ledger in the folder keeps an interrupted fit."""
        task = self.task(data, model)
        if self.quick and len(task) > _QUICK["n"]:
            task = some_items(task, _QUICK["n"], current().seed)
        fitted_on, tried_on = task.split(0.8)
        with settings(store=place / "gates.ledger"):
            gates = finished(fit_gates(model, fitted_on, **self.fit))
        curves = finished(role_curve(model, tried_on, gates, counts=self.most, draws=self.draws))
        gates.save(place / "gates.nc")
        curves.save(place / "curves.nc")
        remove_files(place, ["gates.ledger"])
        return gates, curves

    def read(self, place: Path) -> tuple[Gates, Curves]:
        return Gates.load(place / "gates.nc"), Curves.load(place / "curves.nc")


@checked
def roles_figure(
    models: ModelNames = None,
    tasks: Tasks = ("syntax", "common_sense", "math"),
    *,
    out: str | Path = "roles-figure",
    seeds: Positive = 10,
    updates: Positive = 500,
    n: Annotated[int, Within(least=2)] | None = None,
    most: Positive = 50,
    symlog: AboveZero | None = None,
    quick: bool = False,
) -> PaperFigure:
    """Curves that test the roles of heads, tasks by models, as in the causal head gating paper (arXiv 2505.13737).

    Gates are fitted to four fifths of a task's items and the curves measured on the rest. Models are loaded one after
    the other, and finished panels are saved at once. After Ctrl-C, or if the process was killed, the same call
    continues, also in the middle of a fit. A model or task that cannot be loaded or read is left out, and a note says
    why.

    Args:
        models: as in ``mh.studies.categories_figure``.
        tasks: names of ``mh.gating.load_task``, and files whose columns are called ``prompt``, ``target`` and, if there
            is one, ``cluster``; or ``mh.Task`` by name.
        out: the folder for the figure and its numbers, with a folder for each panel.
        seeds, updates: as in ``mh.fit_gates``.
        n: the number of items of each task; ``None`` for all.
        most: the largest number of heads to gate off.
        symlog: as in ``mh.plots.curves``; 1 in the paper's figure.
        quick: at most 2 seeds, 20 larger updates of 8 items, 40 items and 20 heads, for a first look.
    """
    names = short_names(DEFAULT_MODEL if models is None else models, "models")
    by_name = short_names(tasks, "tasks")
    options: dict[str, Any] = {"seeds": seeds, "updates": updates, "n": n, "most": most, "quick": quick}
    work = _Roles(by_name, **options)
    data: dict[str, dict[str, Any]] = {}
    for short, task in by_name.items():
        if isinstance(task, Task) or not needs_model(task):
            work.task(short)
        data[short] = {"task": mark(task, "task")} if isinstance(task, Task) else {"task": task, **file_hashes([task])}
    panels = compute_panels(out, names, data, {"study": "figure of roles", "seed": current().seed, **options}, work)
    shown: dict[str, dict[str, Curves]] = {}
    curves, heads, shares = [], [], []
    for (name, task), (gates, changes) in panels.results.items():
        shown.setdefault(task, {})[name] = changes
        roles, labels = head_roles(gates), {"model": name, "task": task}
        curves.append((labels, changes.table))
        heads.append((labels, roles.to_dataframe()))
        shares.append((labels, roles.shares()))
    tables = {"shares": joined(shares), "curves": joined(curves), "heads": joined(heads)}
    return panels.write(draw_curves(shown, symlog=symlog), shown, tables, "Roles of heads", _TEXT)
