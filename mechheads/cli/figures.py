"""``mechheads figure``: the figures of three papers for several models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.options import (
    INTERVENTIONS,
    TASKS,
    Device,
    Labelling,
    Machine,
    ModelNames,
    Out,
    Seed,
    Taken,
    above_zero,
    command,
    folder,
    group,
    number,
    one_of,
    request_names,
    several,
    task_names,
)
from mechheads.cli.results import results_in
from mechheads.data import names
from mechheads.limits import settings

figure = group(
    "A figure of one of three papers for several models: the drawing, its numbers and a page. The same command goes on "
    "after Ctrl-C. The exit code is 3 if a model or a data set was left out."
)


@command(figure, "mechheads figure categories --model gpt2,EleutherAI/pythia-160m --quick")
def categories(
    model: ModelNames = None,
    out: Out = Path("categories-figure"),
    quick: Annotated[bool, typer.Option(help="Four relations: a first look.")] = False,
    marks: Annotated[
        str, typer.Option(callback=one_of(("cells", "dots")), help='"cells", or "dots" as in the paper\'s figure.')
    ] = "cells",
    device: Device = "auto",
    seed: Seed = 0,
    *,
    labels: Labelling,
) -> None:
    """The categories of every head, from weights: one panel for each model."""
    from mechheads.studies import categories_figure

    with results_in(out) as results, settings(device=device, seed=seed):
        results.draw(categories_figure(model, out=out, quick=quick, marks=marks, **asdict(labels)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ranking:
    """How heads are ranked by answers to requests."""

    ablations: Annotated[
        list[str] | None,
        several(
            "undifferentiated, scaling, uniform, zero, mean or resample. Default: the first two.",
            one_of([name for name in INTERVENTIONS if name != "patch"]),
        ),
    ] = None
    score: Annotated[
        str,
        typer.Option(
            callback=one_of(("ships", "generalized")),
            help='What ranks the heads: "ships", or "generalized", which gives the colours in any case.',
        ),
    ] = "ships"
    k: Annotated[int, number("Number of heads to draw for each ablation.", least=1)] = 10
    template: Annotated[
        str,
        typer.Option(
            callback=one_of(("query", "bare", "chat")),
            help='"query" (the paper\'s), "bare" or "chat" (the model\'s own).',
        ),
    ] = "query"


@command(figure, "mechheads figure safety --requests harmful,AdvBench --by ablation")
def safety(
    model: ModelNames = None,
    requests: Annotated[
        list[str] | None,
        several("harmful, JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file.", request_names),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            callback=one_of(("requests", "ablation")),
            help='"requests": a panel for each model and set of requests, with a marker for each ablation; "ablation": '
            "a panel for each ablation, with a marker for each model.",
        ),
    ] = "requests",
    out: Out = Path("safety-figure"),
    quick: Annotated[bool, typer.Option(help="Eight requests of each set: a first look.")] = False,
    seed: Seed = 0,
    *,
    taken: Taken,
    ranking: Ranking,
    machine: Machine,
) -> None:
    """The heads on which answers to requests depend, with a panel for each set of requests or for each ablation."""
    rows = taken.given()
    from mechheads.studies import safety_figure

    given: dict[str, Any] = {
        "requests": requests,
        "by": by,
        "out": out,
        "quick": quick,
        **asdict(ranking),
    }
    if rows:
        from mechheads.safety.requests import load_requests

        given["requests"] = _opened(requests, lambda name: load_requests(name, **rows))
    with results_in(out) as results, settings(workers=machine.workers, device=machine.device, seed=seed):
        results.draw(safety_figure(model, **_known(given)))


@dataclass(frozen=True)
class Fits:
    """How gates are fitted, and how far curves go."""

    seeds: Annotated[int, number("Number of fits from different starts.", least=1)] = 10
    updates: Annotated[int, number("Largest number of updates in each of the three fits.", least=1)] = 500
    n: Annotated[int | None, number("Number of items of each task. Default: all.", least=2)] = None
    most: Annotated[int, number("Largest number of heads to gate off.", least=1)] = 50
    symlog: Annotated[
        float | None,
        typer.Option(
            callback=above_zero,
            help="Draw changes on a symmetric logarithmic axis, linear up to this number: 1 in the paper.",
        ),
    ] = None


@command(figure, "mechheads figure roles --model gpt2 --tasks syntax,common_sense --n 100")
def roles(
    model: ModelNames = None,
    tasks: Annotated[list[str] | None, several(f"{TASKS} Default: syntax, common_sense, math.", task_names)] = None,
    out: Out = Path("roles-figure"),
    quick: Annotated[bool, typer.Option(help="Few items, seeds and updates: a first look.")] = False,
    seed: Seed = 0,
    *,
    taken: Taken,
    fits: Fits,
    machine: Machine,
) -> None:
    """How tasks change as heads of each role are gated off: one row for each task, one column for each model."""
    given: dict[str, Any] = {"tasks": tasks, "out": out, "quick": quick, **asdict(fits)}
    rows = taken.of_tasks()
    from mechheads.studies import roles_figure

    if rows:
        from mechheads.gating.shipped import task_of

        given["tasks"] = _opened(tasks, lambda name: task_of(name, rows))
    with results_in(out) as results, settings(workers=machine.workers, device=machine.device, seed=seed):
        results.draw(roles_figure(model, **_known(given)))


def _opened(names: Sequence[str] | None, read: Callable[[str], Any]) -> dict[str, Any] | None:
    """Data sets by name, of which files are read; None for those of the figure."""
    found: dict[str, Any] = {}
    for name in names or ():
        is_file = (file := Path(name).expanduser()).is_file()
        found[file.stem if is_file else name] = read(name) if is_file else name
    return found or None


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, or have a default here."""
    return {name: value for name, value in given.items() if value is not None}


@command(figure, "mechheads figure recipe chg --model gpt2 --quick")
def recipe(
    name: Annotated[
        str,
        typer.Argument(callback=one_of(names("recipes")), help="maps: categories; ships: safety heads; chg: roles."),
    ],
    model: ModelNames = None,
    data: Annotated[
        list[str] | None,
        several("Other relations, requests or tasks than the recipe's."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=folder, help="Folder for the results. Default: the name of the recipe.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="A first look, as in the command of the figure.")] = False,
    seed: Seed = 0,
    *,
    machine: Machine,
) -> None:
    """A paper's figure with the paper's models and settings, and its printed numbers next to these."""
    from mechheads.studies import recipe_figure

    with results_in(out or Path(name)) as results, settings(workers=machine.workers, device=machine.device, seed=seed):
        results.draw(recipe_figure(name, model, data=data, out=out, quick=quick))
