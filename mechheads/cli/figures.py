"""``mechheads figure``: the figures of three papers for several models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.options import (
    TASKS,
    Device,
    MinPairs,
    OnDisk,
    Out,
    Relations,
    Rule,
    Source,
    WorkersOfFigure,
    WorkersOption,
)
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
def categories(
    model: ModelNames = None,
    relations: Relations = None,
    out: Out = Path("categories-figure"),
    rule: Rule = "null",
    source: Source = "all",
    min_pairs: MinPairs = 30,
    on_disk: OnDisk = False,
    quick: Annotated[bool, typer.Option(help="Four relations: a first look.")] = False,
    marks: Annotated[str, typer.Option(help='"cells", or "dots" as in the paper\'s figure.')] = "cells",
    device: Device = "auto",
) -> None:
    """The categories of every head, from weights: one panel for each model."""
    from mechheads.studies import categories_figure

    with results_in(out) as results:
        results.draw(
            categories_figure(
                model or None,
                relations or None,
                out=out,
                rule=rule,  # type: ignore[arg-type]
                source=source,  # type: ignore[arg-type]
                min_pairs=min_pairs,
                on_disk=on_disk,
                quick=quick,
                marks=marks,  # type: ignore[arg-type]
                device=device,
            )
        )


@figure.command()
def safety(
    model: ModelNames = None,
    requests: Annotated[
        list[str] | None,
        typer.Option(help="harmful, JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file; can be repeated."),
    ] = None,
    ablations: Annotated[
        list[str] | None,
        typer.Option(help="undifferentiated, scaling, zero, mean, resample; can be repeated. Default: the first two."),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help='"requests": a panel for each model and set of requests, with a marker for each ablation; "ablation": '
            "a panel for each ablation, with a marker for each model."
        ),
    ] = "requests",
    score: Annotated[
        str, typer.Option(help='What ranks the heads: "ships", or "generalized", which gives the colours in any case.')
    ] = "ships",
    out: Out = Path("safety-figure"),
    k: Annotated[int, typer.Option(help="Number of heads to draw for each ablation.")] = 10,
    template: Annotated[
        str, typer.Option(help='"query" (the paper\'s), "bare" or "chat" (the model\'s own).')
    ] = "query",
    quick: Annotated[bool, typer.Option(help="Eight requests of each set: a first look.")] = False,
    seed: Annotated[int, typer.Option(help="Seed for resampling.")] = 0,
    device: Device = "auto",
    workers: WorkersOption = "1",
) -> None:
    """The heads on which answers to requests depend, with a panel for each set of requests or for each ablation."""
    from mechheads.studies import safety_figure

    chosen: dict[str, Any] = {"requests": requests, "ablations": ablations}
    with results_in(out) as results, settings(workers=workers, seed=seed):
        results.draw(
            safety_figure(
                model or None,
                **{name: given for name, given in chosen.items() if given},
                out=out,
                by=by,  # type: ignore[arg-type]
                score=score,  # type: ignore[arg-type]
                k=k,
                template=template,  # type: ignore[arg-type]
                quick=quick,
                device=device,
            )
        )


@figure.command()
def roles(
    model: ModelNames = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help=f"{TASKS} Can be repeated. Default: syntax, common_sense, math."),
    ] = None,
    out: Out = Path("roles-figure"),
    seeds: Annotated[int, typer.Option(help="Number of fits from different starts.")] = 10,
    updates: Annotated[int, typer.Option(help="Largest number of updates in each of the three fits.")] = 500,
    n: Annotated[int | None, typer.Option(help="Number of items of each task. Default: all.")] = None,
    most: Annotated[int, typer.Option(help="Largest number of heads to gate off.")] = 50,
    symlog: Annotated[
        float | None,
        typer.Option(help="Draw changes on a symmetric logarithmic axis, linear up to this number: 1 in the paper."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="Few items, seeds and updates: a first look.")] = False,
    device: Device = "auto",
    workers: WorkersOption = "1",
) -> None:
    """How tasks change as heads of each role are gated off: one row for each task, one column for each model."""
    from mechheads.studies import roles_figure

    chosen: dict[str, Any] = {"tasks": tasks} if tasks else {}
    with results_in(out) as results, settings(workers=workers):
        results.draw(
            roles_figure(
                model or None,
                **chosen,
                out=out,
                seeds=seeds,
                updates=updates,
                n=n,
                most=most,
                symlog=symlog,
                quick=quick,
                device=device,
            )
        )


def _known_recipe(name: str) -> str:
    if name not in names("recipes"):
        raise typer.BadParameter(f"{name!r} is not a recipe; choose one of {', '.join(names('recipes'))}")
    return name


@figure.command()
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
    device: Device = "auto",
    workers: WorkersOfFigure = "1",
) -> None:
    """A paper's figure with the paper's models and settings, and its printed numbers next to these."""
    from mechheads.studies import recipe_figure

    with results_in(out or Path(name)) as results, settings(workers=workers):
        results.draw(recipe_figure(name, model or None, data=data or None, out=out, quick=quick, device=device))
