"""What a figure leaves in its folder: the drawing, tables and a page."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.files.replacing import write_file
from mechheads.plots.saving import HOW_TO_GET, IMAGES, first_line, has_kaleido, save
from mechheads.studies.figures.panels import FILE, FigureFolder, Panels
from mechheads.studies.report import write_figure_page
from mechheads.studies.study import save_parts

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

NOT_REACHED = "not reached: the work was interrupted"


@dataclass(frozen=True)
class PaperFigure:
    """A figure for several models, from ``mh.studies.categories_figure``, ``safety_figure`` or ``roles_figure``.

    Attributes:
        figure: the figure.
        panels: what is drawn in each panel, as the function of ``mh.plots`` takes it; a text is the reason why a panel
            has no result.
        tables: the numbers of all panels.
        lines: the result in a few lines of text.
        files: everything that was written.
        interrupted: whether Ctrl-C ended the work; the same call goes on.
    """

    figure: go.Figure
    panels: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    lines: tuple[str, ...]
    files: tuple[Path, ...]
    interrupted: bool = False

    def summary(self) -> str:
        """The result in a few lines of text."""
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"<PaperFigure in {self.files[0].parent}: {', '.join(self.panels)}>"


@dataclass(frozen=True)
class Drawn:
    """A figure with what its page says.

    Attributes:
        figure, panels, tables, lines: as in ``PaperFigure``.
        title: the title of the page.
        text: what the figure shows.
        shown: tables for the page, by their titles.
    """

    figure: go.Figure
    panels: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    lines: tuple[str, ...]
    title: str
    text: str
    shown: Mapping[str, pd.DataFrame]


def write_figure(folder: FigureFolder, panels: Panels[Any], drawn: Drawn) -> PaperFigure:
    """Write a figure as HTML and, if a browser can draw it, as PDF, SVG and PNG; also its tables and a page."""
    lines = [*drawn.lines, *_left_out(folder, panels)]
    if panels.interrupted:
        lines.append("Note       interrupted: the same command goes on with the panels that are missing")
    images, why = _write_images(drawn.figure, folder.path)
    if why:
        lines.append(f"Note       no PDF, SVG or PNG: {why}")
    page = write_figure_page(
        folder.path / "index.html", drawn.title, drawn.text, "\n".join(lines), drawn.figure, drawn.shown
    )
    files = [page, save(drawn.figure, folder.path / "figure.html"), *images, folder.path / FILE]
    files += save_parts(folder.path, {}, drawn.tables)
    files += panels.files
    return PaperFigure(
        drawn.figure, drawn.panels, drawn.tables, tuple(lines), tuple(files), interrupted=panels.interrupted
    )


def _left_out(folder: FigureFolder, panels: Panels[Any]) -> list[str]:
    """A line for each reason why panels have no result."""
    lines: dict[tuple[str, str], list[str]] = {}
    for (model, data), why in panels.failures.items():
        lines.setdefault((folder.names[model], why), []).append(data if len(folder.request.data) > 1 else "")
    return [f"Left out   {', '.join([name, *filter(None, several)])}: {why}" for (name, why), several in lines.items()]


def _write_images(figure: go.Figure, folder: Path) -> tuple[list[Path], str]:
    """The files of the images, or why there are none. Images of an earlier figure are removed."""
    import plotly.io

    names = [f"figure.{kind}" for kind in IMAGES]
    why, drawn = "" if has_kaleido() else HOW_TO_GET, dict[str, bytes]()
    with tempfile.TemporaryDirectory(prefix="mechheads-") as place:
        try:
            layout: Any = figure.layout
            size = {"width": layout.width, "height": layout.height}  # which write_images does not read
            if not why:
                plotly.io.write_images([figure] * len(names), [Path(place, name) for name in names], **size)
        except Exception as error:  # kaleido raises errors of many types if it finds no browser, or the browser fails
            why = f"kaleido could not draw them ({first_line(error)})"
        else:  # kaleido raises no error if a single image fails
            drawn = {name: Path(place, name).read_bytes() for name in names if Path(place, name).is_file()}
            lacking = ", ".join(f"{name} was not written" for name in names if not drawn.get(name))
            why = why or (lacking and f"kaleido could not draw them ({lacking})")
    if not why:
        return [write_file(folder / name, drawn[name]) for name in names], ""
    for name in names:
        (folder / name).unlink(missing_ok=True)
    return [], why
