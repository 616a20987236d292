"""``mechheads figure``: the figures of three papers for several models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.options import TASKS, Device, Labelling, Machine, Out, grouped
from mechheads.cli.results import results_in
from mechheads.data import names
from mechheads.limits import settings

figure = typer.Typer(
    help="A figure of one of three papers for several models: the drawing, its numbers and a page. The same command "
    "goes on after Ctrl-C.",
    no_args_is_help=True,
)

ModelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Hub name (with @ and a revision, if you like), Hugging Face folder or GGUF file; can be repeated.",
    ),
]


@figure.command()
@grouped
def categories(
    model: ModelNames = None,
    out: Out = Path("categories-figure"),
    quick: Annotated[bool, typer.Option(help="Four relations: a first look.")] = False,
    marks: Annotated[str, typer.Option(help='"cells", or "dots" as in the paper\'s figure.')] = "cells",
    device: Device = "auto",
    *,
    labels: Labelling,
) -> None:
    """The categories of every head, from weights: one panel for each model."""
    from mechheads.studies import categories_figure

    with results_in(out) as results:
        results.draw(
            categories_figure(model, out=out, quick=quick, marks=marks, device=device, **asdict(labels))  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Ranking:
    """How heads are ranked by answers to requests."""

    ablations: Annotated[
        list[str] | None,
        typer.Option(
            help="undifferentiated, scaling, uniform, zero, mean, resample; can be repeated. Default: the first two."
        ),
    ] = None
    score: Annotated[
        str, typer.Option(help='What ranks the heads: "ships", or "generalized", which gives the colours in any case.')
    ] = "ships"
    k: Annotated[int, typer.Option(help="Number of heads to draw for each ablation.")] = 10
    template: Annotated[str, typer.Option(help='"query" (the paper\'s), "bare" or "chat" (the model\'s own).')] = (
        "query"
    )


@figure.command()
@grouped
def safety(
    model: ModelNames = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(help="harmful, JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file; can be repeated."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help='"requests": a panel for each model and set of requests, with a marker for each ablation; "ablation": '
            "a panel for each ablation, with a marker for each model."
        ),
    ] = "requests",
    out: Out = Path("safety-figure"),
    quick: Annotated[bool, typer.Option(help="Eight requests of each set: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for resampling.")] = 0,
    *,
    ranking: Ranking,
    machine: Machine,
) -> None:
    """The heads on which answers to requests depend, with a panel for each set of requests or for each ablation."""
    from mechheads.studies import safety_figure

    given: dict[str, Any] = {"requests": requests, "by": by, "out": out, "quick": quick, **asdict(ranking)}
    with results_in(out) as results, settings(workers=machine.workers, seed=seed):
        results.draw(safety_figure(model, **_known(given), device=machine.device))


@dataclass(frozen=True)
class Fits:
    """How gates are fitted, and how far curves go."""

    seeds: Annotated[int, typer.Option(help="Number of fits from different starts.")] = 10
    updates: Annotated[int, typer.Option(help="Largest number of updates in each of the three fits.")] = 500
    n: Annotated[int | None, typer.Option(help="Number of items of each task. Default: all.")] = None
    most: Annotated[int, typer.Option(help="Largest number of heads to gate off.")] = 50
    symlog: Annotated[
        float | None,
        typer.Option(help="Draw changes on a symmetric logarithmic axis, linear up to this number: 1 in the paper."),
    ] = None


@figure.command()
@grouped
def roles(
    model: ModelNames = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help=f"{TASKS} Can be repeated. Default: syntax, common_sense, math."),
    ] = None,
    out: Out = Path("roles-figure"),
    quick: Annotated[bool, typer.Option(help="Few items, seeds and updates: a first look.")] = False,
    *,
    fits: Fits,
    machine: Machine,
) -> None:
    """How tasks change as heads of each role are gated off: one row for each task, one column for each model."""
    from mechheads.studies import roles_figure

    given: dict[str, Any] = {"tasks": tasks, "out": out, "quick": quick, **asdict(fits)}
    with results_in(out) as results, settings(workers=machine.workers):
        results.draw(roles_figure(model, **_known(given), device=machine.device))


def _known(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, or have a default here."""
    return {name: value for name, value in given.items() if value is not None}


def _known_recipe(name: str) -> str:
    if name not in names("recipes"):
        raise typer.BadParameter(f"{name!r} is not a recipe; choose one of {', '.join(names('recipes'))}")
    return name


@figure.command()
@grouped
def recipe(
    name: Annotated[
        str,
        typer.Argument(callback=_known_recipe, help="maps: categories; ships: safety heads; chg: roles."),
    ],
    model: ModelNames = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Other relations, requests or tasks than the recipe's; can be repeated."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results. Default: the name of the recipe.")] = None,
    quick: Annotated[bool, typer.Option(help="A first look, as in the command of the figure.")] = False,
    *,
    machine: Machine,
) -> None:
    """A paper's figure with the paper's models and settings, and its printed numbers next to these."""
    from mechheads.studies import recipe_figure

    with results_in(out or Path(name)) as results, settings(workers=machine.workers):
        results.draw(recipe_figure(name, model, data=data, out=out, quick=quick, device=machine.device))
