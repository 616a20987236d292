"""The figure of the causal head gating paper for several models and tasks: curves that test the roles of heads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mechheads.gating import Gates, RoleCurves, fit_gates, head_roles, role_curve
from mechheads.gating.fit.arguments import check_seeds, check_updates
from mechheads.gating.tasks.open_task import needs_model, open_task
from mechheads.gating.tasks.task import Task
from mechheads.limits import Limits, Workers
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import stop_if
from mechheads.model.load import load
from mechheads.model.model import Model
from mechheads.model.sources import DEFAULT_MODEL
from mechheads.plots.role_curves import role_curves
from mechheads.studies.figures.output import NOT_REACHED, Drawn, PaperFigure, write_figure
from mechheads.studies.figures.panels import FigureFolder, Panels, Work, compute_panels
from mechheads.studies.figures.request import (
    FigureRequest,
    ModelNames,
    data_names,
    file_checksum,
    model_names,
    short_names,
)

_QUICK: dict[str, int] = {"seeds": 2, "updates": 20, "batch": 8, "n": 40, "most": 20, "draws": 2}
_QUICK_RATES: dict[str, Any] = {"lr": (0.3, 0.03), "lr_regularised": (0.5, 0.05)}
_TEXT = (
    "How the log-probability of a task's targets changes when the first k heads of a role are gated off rather than "
    "on: a row for each task, a column for each model. All other gates come from the fit that pulls gates open. Heads "
    "that facilitate the task should take the curve below 0, heads that interfere above 0, and irrelevant heads should "
    "leave it near 0. Grey: random orders of heads. The items were not among those to which the gates were fitted."
)


@dataclass(frozen=True)
class FittedRoles:
    """The gates of a model for a task, and the curves that test the roles they give."""

    gates: Gates
    curves: RoleCurves


@dataclass(frozen=True)
class _Settings:
    """How gates are fitted and curves measured."""

    seeds: int
    updates: int
    batch: int
    n: int | None
    most: int
    quick: bool
    progress: bool
    limits: Limits

    def task(self, name: str, model: Model | None) -> Task:
        """The items of a task."""
        task = open_task(name, model=model, n=self.n)
        if not self.quick or len(task) <= _QUICK["n"]:
            return task
        return task.items(np.random.default_rng(0).permutation(len(task))[: _QUICK["n"]].tolist())

    def fit(self, model: Model, task: Task, **options: Any) -> Gates:
        few = _QUICK if self.quick else {}
        about: dict[str, Any] = {
            name: min(getattr(self, name), few.get(name, getattr(self, name))) for name in ("seeds", "updates", "batch")
        }
        about |= {"budget": self.limits} | (_QUICK_RATES if self.quick else {})
        return fit_gates(model, task, **about | options)

    def seconds(self, model: Model, name: str) -> float:
        """An estimate of the time for the fits in this process, from one update."""
        fitted_on, _ = self.task(name, model).split(0.8)
        start = time.perf_counter()
        self.fit(model, fitted_on, updates=1, progress=False, budget=self.limits.in_one_process)
        return (time.perf_counter() - start) * (min(self.updates, _QUICK["updates"]) if self.quick else self.updates)

    def compute(self, model: Model, name: str, place: Path) -> FittedRoles:
        """Gates and curves, saved in a folder. A checkpoint there continues an interrupted fit.

        Raises:
            KeyboardInterrupt: if Ctrl-C ended a part.
        """
        fitted_on, tried_on = self.task(name, model).split(0.8)
        checkpoint = place / "gates.checkpoint"
        gates = self.fit(model, fitted_on, checkpoint=checkpoint, progress=self.progress)
        stop_if(gates.interrupted)
        most = min(self.most, _QUICK["most"]) if self.quick else self.most
        draws = _QUICK["draws"] if self.quick else 5
        options: dict[str, Any] = {"most": most, "draws": draws, "progress": self.progress, "budget": self.limits}
        curves = role_curve(model, tried_on, gates, **options)
        stop_if(curves.interrupted)
        gates.save(place / "gates.nc")
        curves.save(place / "curves.nc")
        checkpoint.unlink(missing_ok=True)
        return FittedRoles(gates, curves)


def roles_figure(
    models: ModelNames = None,
    tasks: str | Path | Sequence[str | Path] = ("syntax", "common_sense", "math"),
    *,
    out: str | Path = "roles-figure",
    seeds: int = 10,
    updates: int = 500,
    batch: int = 64,
    n: int | None = None,
    most: int = 50,
    quick: bool = False,
    device: str = "cpu",
    progress: bool = True,
    workers: Workers | None = None,
) -> PaperFigure:
    """Curves that test the roles of heads, tasks by models, as in the causal head gating paper (arXiv 2505.13737).

    Gates are fitted to four fifths of a task's items and the curves measured on the rest. Models are loaded one after
    the other, and what is finished is saved at once. After Ctrl-C, or if the process was killed, the same call goes on,
    also in the middle of a fit. A model that cannot be loaded or read has its reason in its panels.

    Args:
        models: as in ``mh.studies.categories_figure``.
        tasks: names and files, as ``mh.gating.open_task`` takes them.
        out: the folder for the figure, its numbers and ``figure.json``, which repeats it; see
            ``mh.studies.repeat_figure``.
        seeds, updates, batch: as in ``mh.fit_gates``.
        n: the number of items of each task; ``None`` for all.
        most: the largest number of heads to gate off.
        quick: at most 2 seeds, 20 larger updates of 8 items, 40 items and 20 heads, for a first look.
        device: the device of the models.
        progress: print what is done and an estimate of the time, on stderr, with progress bars.
        workers: what fits gates (each seed is a unit) and measures curves (each curve is one), as in ``mh.sweep``; they
            load each model in turn. ``figure.json`` does not hold them: a figure may go on with other workers, or
            without.

    Raises:
        ValueError: if an argument does not fit or the folder holds another figure (raised before a model is loaded),
            or if no model could be read.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    names = model_names(models, DEFAULT_MODEL)
    asked = data_names(tasks, "tasks")
    settings = _Settings(seeds, updates, batch, n, most, quick, progress, Limits.of(None, workers))
    _check(settings, asked)
    titles = short_names(asked)
    paths = {title: name for name, title in titles.items()}
    given = {"seeds": seeds, "updates": updates, "batch": batch, "n": n, "most": most, "quick": quick}
    request = FigureRequest.of(
        "roles",
        names,
        {"tasks": asked, **given},
        data=list(paths),
        checksums={name: file_checksum(name) for name in asked if Path(name).is_absolute()},
    )
    folder = FigureFolder(out, request)
    work = Work(
        lambda name, revision: load(name, revision=revision, device=device),
        lambda model, todo: sum(settings.seconds(model, paths[title]) for title in todo),
        lambda model, title, place: settings.compute(model, paths[title], place),
        lambda place: FittedRoles(Gates.load(place / "gates.nc"), RoleCurves.load(place / "curves.nc")),
        settings.limits,
    )
    panels = compute_panels(folder, work, progress=progress)
    return write_figure(folder, panels, _draw(folder, panels))


def _check(settings: _Settings, tasks: Sequence[str]) -> None:
    check_seeds(settings.seeds)
    check_updates(settings.updates)
    check_at_least(1, batch=settings.batch, most=settings.most)
    if settings.n is not None and settings.n < 2:
        raise ValueError(f"n is {settings.n}; give at least 2 items, or None for all")
    for name in tasks:
        if not needs_model(name):
            open_task(name, n=settings.n)


def _draw(folder: FigureFolder, panels: Panels[FittedRoles]) -> Drawn:
    shown: dict[str, dict[str, RoleCurves | str]] = {}
    curves, heads, shares, lines = [], [], [], []
    for model, task in folder.request.panels:
        name, found = folder.names[model], panels.results.get((model, task), NOT_REACHED)
        shown.setdefault(task, {})[name] = found if isinstance(found, str) else found.curves
        if isinstance(found, str):
            continue
        roles, about = head_roles(found.gates), {"model": name, "task": task}
        curves.append(found.curves.table.assign(**about))
        heads.append(roles.to_dataframe().assign(**about))
        shares.append(roles.shares().assign(**about))
        always = ", ".join(f"{role} {share:.1%}" for role, share in roles.always().items())
        lines.append(f"{name}, {task}: {always} of heads in every seed")
    tables = {"curves": _joined(curves), "heads": _joined(heads), "shares": _joined(shares)}
    return Drawn(
        figure=role_curves(shown),
        panels=shown,
        tables=tables,
        lines=tuple(lines),
        title="Roles of heads",
        text=_TEXT,
        shown={"Shares of heads with each role": tables["shares"]},
    )


def _joined(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables below each other, model and task first."""
    table = pd.concat(tables, ignore_index=True)
    return table.loc[:, ["model", "task", *(name for name in table if name not in ("model", "task"))]]
