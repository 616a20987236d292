"""The command line, ``mechheads``: each command calls Python functions and writes their results to a folder."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads._version import __version__
from mechheads.cli.figures import figure
from mechheads.cli.options import (
    PARTS,
    Machine,
    ModelName,
    Out,
    Question,
    Seed,
    Taken,
    a_file,
    command,
    group as group_of,
    one_of,
    several,
)
from mechheads.cli.results import PAGE, results_in
from mechheads.limits import settings, without_collecting

main = group_of("What does each attention head of a language model do, and how sure are we?")
main.add_typer(figure, name="figure")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@main.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@command(main, "mechheads atlas --model gpt2 --only patching,labels --out gpt2-atlas")
def atlas(
    model: ModelName = None,
    out: Out = Path("atlas"),
    only: Annotated[
        list[str] | None, several(f"Parts to do: {', '.join(PARTS)}. Default: all but roles.", one_of(PARTS))
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Fewer of the package's relations, pairs and requests: a first look.")
    ] = False,
    seed: Seed = 0,
    *,
    question: Question,
    taken: Taken,
    machine: Machine,
) -> None:
    """What every head does: names, labels, effects and safety heads, as tables and a page to explore.

    After Ctrl-C or a kill, the same command continues. With --pairs, --relations, --requests, --task and --texts it is
    about your own question.
    """
    given = asdict(question) | {"only": only, "quick": quick}
    if rows := taken.given():
        if question.requests is None:
            raise typer.BadParameter("--column and --where are of the file of --requests; give it too")
        from mechheads.safety.requests import load_requests

        given["requests"] = load_requests(question.requests, **rows)
    with settings(workers=machine.workers, seed=seed):
        _build(out, model, machine.device, given)


def _build(out: Path, model: str | None, device: str, given: dict[str, Any]) -> None:
    """Build an atlas of a model in a folder, or go on with the one that is there, and print what it found."""
    with without_collecting():
        from mechheads.explorer.page import write_page
        from mechheads.model.load import load
        from mechheads.studies.atlas import ATLAS_FILES
        from mechheads.studies.build import build_atlas
        from mechheads.studies.questions import Questions

    ledger = "atlas.ledger"
    with results_in(out, (*ATLAS_FILES, PAGE, ledger)) as results:
        with without_collecting():
            loaded = load(model, device=device)
        results.of(Questions.of(loaded, **given).study)
        before = results.atlas_before()
        grow = partial(results.grow, write_page=write_page)
        stored = settings(store=out / ledger)(build_atlas)
        results.take(stored(loaded, **given, resume=before, after_each=grow), write_page)
        results.finish(ledger)


@command(main, "mechheads merge part1.ledger part2.ledger --into all.ledger")
def merge(
    parts: Annotated[list[Path], typer.Argument(callback=a_file, help="The ledgers.")],
    into: Annotated[Path, typer.Option(help="The ledger that gets all units.")],
) -> None:
    """Merge the ledgers of the parts of an analysis into one, with checks."""
    from mechheads.ledger.ledger import merge as merge_ledgers

    merged = merge_ledgers(parts, into)
    typer.echo(f"{into}: {merged.units} units, {merged.new} of them new")
