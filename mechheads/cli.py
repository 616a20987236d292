"""The command line, ``mechheads``: each command calls Python functions and writes their results to a folder."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from mechheads._version import __version__
from mechheads.io.write import folder_locked
from mechheads.limits import settings

if TYPE_CHECKING:
    from mechheads.studies.atlas import Atlas

PAGE, LEDGER = "index.html", "atlas.ledger"
_LEFT_OUT = 3
"""The exit code of a figure that lacks a model or a data set."""

main = typer.Typer(
    help="What does each attention head of a language model do, and how sure are we?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Command(TyperCommand):
    """A command that reports a wrong argument, a problem with a file or a lack of memory in one sentence."""

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(limit=200)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "Interrupted before there was a result.", err=True)
            raise typer.Exit(130) from stop
        except Exception as error:
            kinds = (ValueError, OSError, ImportError, MemoryError, sqlite3.Error)
            is_reported = isinstance(error, kinds) or type(error).__name__ == "OutOfMemoryError"
            if not is_reported or getattr(error, "errno", None) == errno.EPIPE:
                raise
            typer.echo(f"Error: {' '.join(str(error).split()) or type(error).__name__}", err=True)
            raise typer.Exit(1) from error


def _split(values: list[str] | None) -> list[str] | None:
    """Values separated by commas; the name of a file may have commas."""
    if not values:
        return None
    parts = [[one] if Path(one).exists() else one.split(",") for one in values]
    names = [part.strip() for of_one in parts for part in of_one if part.strip()]
    if not names:
        raise typer.BadParameter("it names nothing")
    return names


def _several(help: str) -> Any:
    """An option for several values, separated by commas or by repeating the option."""
    return typer.Option(help=f"{help} Several: with commas, or the option again.", metavar="A,B,...", callback=_split)


def _file(help: str) -> Any:
    return typer.Option(exists=True, dir_okay=False, help=help)


def _workers(value: str) -> int | str | None:
    """The value of ``--workers``: a number, an address, or None for 1, which is this process."""
    return None if value == "1" else int(value) if value.isdecimal() else value


_TASKS = "syntax, common_sense, math, aba_abb, a relation, or a file with the columns prompt and target."
_REQUESTS = "harmful, JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file of one column"
Device = Annotated[
    str, typer.Option(help='Device of the model: "cpu", "cuda", "mps" or "auto" (CUDA if there is any, else the CPU).')
]
Workers = Annotated[
    Any,
    typer.Option(
        parser=_workers,
        metavar="N|ADDRESS",
        help="What computes: a number of workers on this machine, such as 4, each with a GPU if --device is one; or "
        'the address of a Ray cluster, such as 10.0.0.5:6379, or "auto" for the one that runs here. 1 is this process.',
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything that is drawn.")]


def _version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


@main.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@main.command(cls=Command, epilog="Example: mechheads atlas --model gpt2 --only patching,labels --out gpt2-atlas")
def atlas(
    model: Annotated[
        str | None,
        typer.Option(help="Hub name, Hugging Face folder or GGUF file. Default: SmolLM2-135M-Instruct."),
    ] = None,
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the results.")] = Path("atlas"),
    only: Annotated[
        list[str] | None,
        _several("Parts to do: patching, text, labels, causes, safety. Default: all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Fewer of the package's relations, pairs and requests: a first look.")
    ] = False,
    pairs: Annotated[
        Path | None,
        _file(
            "Your own pairs to patch: CSV, JSON, JSONL or Parquet with the columns clean, corrupted and, if you have "
            "them, answer, wrong and cluster. Default: capitals."
        ),
    ] = None,
    relations: Annotated[
        list[str] | None, _several("A relation's name or a file. Default: all relations of the package.")
    ] = None,
    requests: Annotated[
        str | None, typer.Option(help=f"{_REQUESTS}. Default: eight of the package and their look-alikes.")
    ] = None,
    texts: Annotated[
        Path | None, _file("A file of texts with empty lines between them. Default: prose of the package.")
    ] = None,
    device: Device = "auto",
    workers: Workers = "1",
    seed: Seed = 0,
) -> None:
    """What every head does: names, labels, effects and safety heads, as tables and a page to explore.

    After Ctrl-C, the same command continues. --pairs, --relations, --requests and --texts ask what you want.
    """
    inputs = {"pairs": pairs, "relations": relations, "requests": requests, "texts": texts}
    start = time.perf_counter()
    with settings(device=device, workers=workers, seed=seed):
        result, files = _build(out, model, inputs | {"only": only, "quick": quick})
    for note in result.notes:
        typer.echo(note)
    _end(start, files, result.interrupted)


def _build(out: Path, model: str | None, inputs: dict[str, Any]) -> tuple[Atlas, list[Path]]:
    """Build an atlas of a model in a folder, or continue the one that is there, and print its answers."""
    from mechheads.explorer.page import write_page
    from mechheads.ledger.ledger import Ledger
    from mechheads.model.load import load
    from mechheads.studies import build
    from mechheads.studies.atlas import ATLAS_FILES, Atlas
    from mechheads.studies.questions import Questions, selected_parts
    from mechheads.studies.study import check_folder, claim_folder, remove_files

    printed, files = dict[str, str](), list[Path]()

    def grow(atlas: Atlas) -> None:
        """Print the tables that have changed, and save the atlas so far with its page, so that a kill loses little."""
        for question in atlas.questions():
            if (text := str(question)) != printed.get(question.key):
                typer.echo(f"{text}\n")
                printed[question.key] = text
        files[:] = [*atlas.save(out), write_page(atlas, out / PAGE)]

    names, ledger = (*ATLAS_FILES, PAGE, LEDGER), out / LEDGER
    selected_parts(inputs["only"])
    out.mkdir(parents=True, exist_ok=True)
    with folder_locked(out):
        check_folder(out, None, names)
        loaded = load(model)
        claim_folder(out, Questions.of(loaded, **inputs).study, names)
        if ledger.exists():
            Ledger.check(ledger)
        before = Atlas.load(out) if (out / "atlas.json").is_file() else None
        with settings(store=ledger):
            result = build.build_atlas(loaded, **inputs, resume=before, after_each=grow)
        if not result.results and not result.tables:
            if result.interrupted:
                raise KeyboardInterrupt
            raise ValueError("; ".join(["there is no result", *result.notes]))
        if result.interrupted or not files:  # otherwise the last part has saved everything
            grow(result)
        if not result.interrupted:
            remove_files(out, [LEDGER])
    return result, files


@main.command(cls=Command, epilog="Example: mechheads figure roles --model gpt2,distilgpt2 --data syntax,math --quick")
def figure(
    name: Annotated[
        str,
        typer.Argument(
            help="categories, safety or roles; or with the models and settings of its paper: maps, ships or chg."
        ),
    ],
    model: Annotated[
        list[str] | None,
        _several(
            "Hub name (with @ and a revision, if you like), Hugging Face folder or GGUF file. Default: one of the "
            "package, or the paper's."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        _several(
            "What stands in place of the figure's own data. For categories and maps: a relation's name or a file. For "
            f"safety and ships: {_REQUESTS}. For roles and chg: {_TASKS}"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the results. Default: the name and -figure.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Fewer data, and shorter fits: a first look.")] = False,
    device: Device = "auto",
    workers: Workers = "1",
    seed: Seed = 0,
) -> None:
    """A figure of one of three papers for several models: the drawing, its numbers and a page.

    After Ctrl-C or a kill, the same command continues. The exit code is 3 if a model or a data set was left out.
    """
    from mechheads.messages.arguments import check_known
    from mechheads.studies.figures import FIGURES, names, recipe_figure

    start, options = time.perf_counter(), {"out": out or Path(f"{name}-figure"), "quick": quick}
    check_known("name", name, (*FIGURES, *names("recipes")))
    with settings(device=device, workers=workers, seed=seed):
        if name in FIGURES:
            draw, argument = FIGURES[name]
            made = draw(model, **options, **({} if data is None else {argument: data}))
        else:
            made = recipe_figure(name, model, data=data, **options)
    typer.echo(str(made))
    _end(start, made.files, made.interrupted, made.left_out)


def _end(start: float, files: Sequence[Path], interrupted: bool, left_out: Sequence[str] = ()) -> None:
    """Print the paths of the files, and exit with a code unless the results are complete."""
    page = next(file for file in files if file.suffix == ".html")
    typer.echo("Files      " + ", ".join(map(str, files)))
    seconds = f"{time.perf_counter() - start:.0f} s"
    if interrupted:
        typer.echo(f"Interrupted after {seconds}; {page} shows the results until then.")
        raise typer.Exit(130)
    typer.echo(f"Done in {seconds}; open {page} in a browser.")
    if left_out:
        typer.echo(f"Left out: {', '.join(left_out)}; the notes say why.", err=True)
        raise typer.Exit(_LEFT_OUT)
