"""The command line: a thin shell over the Python functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from mechheads import __version__

main = typer.Typer(
    help="What does each attention head of a language model do, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


@main.command()
def atlas(
    model: Annotated[
        str | None,
        typer.Option(help="Hub name, Hugging Face folder or GGUF file; left out, SmolLM2-135M-Instruct, fetched once."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("atlas"),
    quick: Annotated[bool, typer.Option(help="Fewer relations, pairs and requests: a first look.")] = False,
) -> None:
    """Label every head, patch, find safety heads; write tables and one page of figures."""
    from mechheads.atlas import build_atlas
    from mechheads.model import load
    from mechheads.report import write_page

    start = time.perf_counter()
    _check_folder(out)
    try:
        result = build_atlas(load(model), quick=quick)
        if not result.results:
            typer.echo("Interrupted before there was a result.", err=True)
            raise typer.Exit(130)
        files = [*result.save(out), write_page(result, out / "index.html")]
    except ValueError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(result.summary())
    typer.echo("Files      " + ", ".join(map(str, files)))
    typer.echo(f"Done in {time.perf_counter() - start:.0f} s; open {out / 'index.html'} in a browser.")
    if result.interrupted:
        raise typer.Exit(130)


def _check_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "is a file" if out.is_file() else f"cannot be made ({error.strerror})"
        typer.echo(f"Error: --out {out} {why}; give a folder", err=True)
        raise typer.Exit(2) from error
