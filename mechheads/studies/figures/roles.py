"""The figure of the causal head gating paper for several models and tasks: curves that test the roles of heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from mechheads.gating import FitSettings, Gates, fit_gates, head_roles, role_curve
from mechheads.gating.shipped import needs_model, task_of
from mechheads.io.rows import Where
from mechheads.limits import current, settings
from mechheads.messages.arguments import AboveZero, Positive, Within, checked
from mechheads.messages.interrupted import stop_if
from mechheads.model.load import load
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
from mechheads.studies.study import remove_ledger

_QUICK: dict[str, int] = {"seeds": 2, "updates": 20, "n": 40, "most": 20}
_QUICK_FIT: dict[str, Any] = {"batch": 8, "fit": FitSettings(lr=(0.3, 0.03), lr_regularised=(0.5, 0.05))}
_TEXT = (
    "How the log-probability of a task's targets changes when the first k heads of a role are gated off rather than "
    "on: a row for each task, a column for each model. All other gates come from the fit that pulls gates open. Heads "
    "that facilitate the task should take the curve below 0, heads that interfere above 0, and irrelevant heads should "
    "leave it near 0. Grey: random orders of heads. The items were not among those to which the gates were fitted."
)


@checked
def roles_figure(
    models: ModelNames = None,
    tasks: str | Path | Sequence[str | Path] = ("syntax", "common_sense", "math"),
    *,
    out: str | Path = "roles-figure",
    seeds: Positive = 10,
    updates: Positive = 500,
    n: Annotated[int, Within(least=2)] | None = None,
    most: Positive = 50,
    symlog: AboveZero | None = None,
    quick: bool = False,
    columns: Mapping[str, str] | None = None,
    where: Where | None = None,
) -> PaperFigure:
    """Curves that test the roles of heads, tasks by models, as in the causal head gating paper (arXiv 2505.13737).

    Gates are fitted to four fifths of a task's items and the curves measured on the rest. Models are loaded one after
    the other, and what is finished is saved at once. After Ctrl-C, or if the process was killed, the same call goes on,
    also in the middle of a fit. A model or task that cannot be loaded or read is left out, with a line
    that says why.

    Args:
        models: as in ``mh.studies.categories_figure``.
        tasks: names of ``mh.gating.load_task``, and files whose columns are called ``prompt``, ``target`` and, if there
            is one, ``cluster``.
        out: the folder for the figure and its numbers, with a folder for each panel.
        seeds, updates: as in ``mh.fit_gates``.
        n: the number of items of each task; ``None`` for all.
        most: the largest number of heads to gate off.
        symlog: as in ``mh.plots.curves``; 1 in the paper's figure.
        quick: at most 2 seeds, 20 larger updates of 8 items, 40 items and 20 heads, for a first look.
        columns: the columns of files that hold ``prompt``, ``target`` and ``cluster``, if they have other names.
        where: the rows of files to take, as in ``mh.gating.load_task``.

    Raises:
        ValueError, KeyboardInterrupt: as in ``mh.studies.categories_figure``.
    """
    names = short_names(DEFAULT_MODEL if models is None else models, "models")
    paths = short_names(tasks, "tasks")
    taken = {**(columns or {}), **({} if where is None else {"where": where})}
    for name in paths.values():
        if not needs_model(name):
            task_of(name, taken, n=n, seed=current().seed)
    asked = {"seeds": seeds, "updates": updates, "n": n, "most": most, "quick": quick} | taken
    fit: dict[str, Any] = {"seeds": seeds, "updates": updates}
    seed = current().seed
    draws = 5
    if quick:
        fit = {name: min(given, _QUICK[name]) for name, given in fit.items()} | _QUICK_FIT
        most, draws = min(most, _QUICK["most"]), 2
    fit["seeds"] = range(seed * fit["seeds"], (seed + 1) * fit["seeds"])

    def compute(model: Model, title: str, place: Path) -> tuple[Gates, Curves]:
        """A ledger in the folder keeps an interrupted fit."""
        task = task_of(paths[title], taken, model=model, n=n, seed=seed)
        if quick and len(task) > _QUICK["n"]:
            task = task.items(np.random.default_rng(seed).permutation(len(task))[: _QUICK["n"]].tolist())
        fitted_on, tried_on = task.split(0.8)
        ledger = place / "gates.ledger"
        with settings(store=ledger):
            gates = fit_gates(model, fitted_on, **fit)
        stop_if(gates.interrupted)
        curves = role_curve(model, tried_on, gates, counts=most, draws=draws)
        stop_if(curves.interrupted)
        gates.save(place / "gates.nc")
        curves.save(place / "curves.nc")
        remove_ledger(place, ledger.name)
        return gates, curves

    panels = compute_panels(
        out,
        names,
        {title: {"task": name, **file_hashes([name])} for title, name in paths.items()},
        {"study": "figure of roles", "seed": seed, **asked},
        PanelMaker(
            lambda name, revision: load(name, revision=revision),
            compute,
            lambda place: (Gates.load(place / "gates.nc"), Curves.load(place / "curves.nc")),
            saved=("gates.nc", "curves.nc", "gates.ledger"),
            tables=("curves", "heads", "shares"),
        ),
    )
    shown: dict[str, dict[str, Curves]] = {}
    curves, heads, shares, lines = [], [], [], []
    for (name, task), (gates, changes) in panels.results.items():
        shown.setdefault(task, {})[name] = changes
        roles, about = head_roles(gates), {"model": name, "task": task}
        curves.append((about, changes.table))
        heads.append((about, roles.to_dataframe()))
        shares.append((about, roles.shares()))
        always = ", ".join(f"{role} {share:.1%}" for role, share in roles.always().items())
        lines.append(f"{name}, {task}: {always} of heads in every seed")
    tables = {"curves": joined(curves), "heads": joined(heads), "shares": joined(shares)}
    return panels.write(
        draw_curves(shown, symlog=symlog),
        shown,
        tables,
        lines,
        title="Roles of heads",
        text=_TEXT,
    )
