"""What a command writes and prints, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mechheads.cli.options import in_options
from mechheads.io.write import folder_locked

if TYPE_CHECKING:
    from mechheads.studies.atlas import Atlas
    from mechheads.studies.figures.panels import PaperFigure

PAGE = "index.html"
_LEFT_OUT = 3
"""The exit code of a figure that lacks a model or a data set."""


@dataclass
class Results:
    """The results of a command."""

    out: Path
    names: Sequence[str] = ()
    lines: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    interrupted: bool = False
    left_out: Sequence[str] = ()
    _told: dict[str, str] = field(default_factory=dict)

    def of(self, study: Mapping[str, str]) -> None:
        """Make the folder one of this study, before the work begins."""
        from mechheads.ledger.ledger import Ledger
        from mechheads.studies.study import claim_folder

        claim_folder(self.out, study, self.names)
        for name in self.names:
            if name.endswith(".ledger") and (self.out / name).exists():
                Ledger.check(self.out / name)

    def atlas_before(self) -> Atlas | None:
        """The atlas that the same command has left in the folder, if it has left one."""
        from mechheads.studies.atlas import Atlas

        return Atlas.load(self.out) if (self.out / "atlas.json").is_file() else None

    def take(self, found: Atlas, write_page: Callable[[Any, Path], Path]) -> None:
        """Save an atlas with its page."""
        if not found.results and not found.tables:
            if found.interrupted:
                raise KeyboardInterrupt
            raise ValueError("; ".join(["there is no result", *found.notes]))
        self.grow(found, write_page)
        self.lines += found.notes
        self.interrupted = found.interrupted

    def grow(self, found: Atlas, write_page: Callable[[Any, Path], Path]) -> None:
        """Print and save what an atlas has so far, with its page, so that a kill loses little."""
        self.tell(found)
        self.files = [*found.save(self.out), write_page(found, self.out / PAGE)]

    def tell(self, found: Atlas) -> None:
        """Print the table of each question that has changed since it was printed."""
        for question in found.questions():
            if (text := str(question)) != self._told.get(question.key):
                typer.echo(f"{text}\n")
                self._told[question.key] = text

    def draw(self, made: PaperFigure) -> None:
        """Show the tables of a figure, and what it wrote."""
        self.lines, self.files, self.interrupted = str(made).splitlines(), list(made.files), made.interrupted
        self.left_out = made.left_out

    def finish(self, ledger: str) -> None:
        """Remove the ledger of the command's work if all of it is done."""
        from mechheads.studies.study import remove_files

        if not self.interrupted:
            remove_files(self.out, [ledger])


@contextmanager
def results_in(out: Path, names: Sequence[str] = ()) -> Iterator[Results]:
    """Run a command's work in a locked folder, then print the results and the paths of the files."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    results = Results(out, names)
    with folder_locked(out):
        if names:
            from mechheads.studies.study import check_folder

            check_folder(out, None, names)
        yield results
    page = next(file for file in results.files if file.suffix == ".html")
    for line in results.lines:
        typer.echo(in_options(line, {"model": "--model"}) if "left out" in line else line)
    typer.echo("Files      " + ", ".join(map(str, results.files)))
    seconds = f"{time.perf_counter() - start:.0f} s"
    if results.interrupted:
        typer.echo(f"Interrupted after {seconds}; {page} shows the results until then.")
        raise typer.Exit(130)
    typer.echo(f"Done in {seconds}; open {page} in a browser.")
    if results.left_out:
        typer.echo(f"Left out: {', '.join(results.left_out)}; the notes say why.", err=True)
        raise typer.Exit(_LEFT_OUT)
