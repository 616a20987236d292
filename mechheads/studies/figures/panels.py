"""Figures of several models: each panel is computed and saved in a folder of its own, and all are drawn at the end."""

from __future__ import annotations

import html
import importlib.metadata
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pandas as pd

from mechheads._version import __version__
from mechheads.io.text import entries, file_sha256
from mechheads.io.write import folder_locked, write_file
from mechheads.messages.notices import until_interrupted
from mechheads.model.load import free_memory, load as load_model
from mechheads.results.shown import html_table, text_table
from mechheads.studies.study import Stages, check_folder, claim_folder, progress_printer, save_parts, short_hash

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.model.model import Model

R = TypeVar("R")
Panel = tuple[str, str]
"""The short names of a model and of a data set; ``""`` if a model has one panel."""
ModelNames = str | Path | Sequence[str | Path] | None
"""Models by name, as ``mh.load`` takes them; a hub name may end in ``@`` and a revision."""


PRINTED = "printed.csv"
"""The table that compares a figure with the paper's."""
_PAGE = "index.html"
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1380px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; }
p { max-width: 46rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 1rem 0; }
th, td { text-align: left; padding: 0.1rem 1rem 0.1rem 0; }
.figure { overflow-x: auto; background: #fff; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; }
}
"""


@dataclass(frozen=True)
class PaperFigure:
    """A figure for several models, from ``mh.studies.categories_figure``, ``safety_figure`` or ``roles_figure``.

    Attributes:
        figure: the figure.
        panels: the results drawn in each panel, as the function of ``mh.plots`` takes them.
        tables: the numbers of all panels by name; ``print`` shows all but the tables of every head or point.
        notes: what was left out and why; for a recipe, also how the package differs from the paper.
        files: the files that were written.
        interrupted: whether Ctrl-C ended the work; the same call continues it.
        left_out: the panels that could not be made.
    """

    figure: go.Figure
    panels: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    notes: tuple[str, ...]
    files: tuple[Path, ...] = ()
    interrupted: bool = False
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<PaperFigure in {self.files[0].parent}: {', '.join(self.panels)}>"

    def __str__(self) -> str:
        lines = [line for table in _shown(self.tables) for line in (*text_table(table, choose=False), "")]
        return "\n".join([*lines, *self.notes])


def _shown(tables: Mapping[str, pd.DataFrame]) -> list[pd.DataFrame]:
    """The tables that are shown with a figure; tables of every head or every point are only in files."""
    return [table for name, table in tables.items() if name not in ("heads", "curves") and len(table)]


class PanelMaker(Generic[R]):
    """How the panels of a kind of figure are made.
    ``saved`` names the files of a panel, ledgers included, and ``tables`` the tables of the figure.
    """

    saved: Sequence[str]
    tables: Sequence[str]

    def load(self, name: str, revision: str | None, max_memory: str | None = None) -> Model:
        """The model of this name."""
        return load_model(name, revision=revision, max_memory=max_memory)

    def compute(self, model: Model, data: str, place: Path) -> R:
        """Compute the panel of a model and a data set, and save it in a folder. Ctrl-C raises an exception."""
        raise NotImplementedError

    def read(self, place: Path) -> R:
        """The panel that ``compute`` saved."""
        raise NotImplementedError


@dataclass
class Panels(Stages, Generic[R]):
    """The panels that could be made, each with its folder, and notes on those left out."""

    out: Path
    folders: dict[Panel, Path]
    results: dict[Panel, R] = field(default_factory=dict)

    def write(
        self, figure: go.Figure, shown: Mapping[str, Any], tables: Mapping[str, pd.DataFrame], title: str, text: str
    ) -> PaperFigure:
        """Write a page with a figure and its tables, and the tables as files."""
        page = write_file(self.out / _PAGE, _page(title, text, tables, self.notes, figure))
        files = [page, *save_parts(self.out, {}, tables, self.study)]
        files += [file for panel in self.results for file in sorted(self.folders[panel].glob("*.nc"))]
        missing = [] if self.interrupted else [panel for panel in self.folders if panel not in self.results]
        left_out = tuple(", ".join(filter(None, panel)) for panel in missing)
        return PaperFigure(figure, shown, tables, tuple(self.notes), tuple(files), self.interrupted, left_out)


def compute_panels(
    out: str | Path,
    models: Mapping[str, str],
    data: Mapping[str, Mapping[str, object]],
    study: Mapping[str, object],
    work: PanelMaker[R],
) -> Panels[R]:
    """The panels of a figure: read from its folder if they are there, else computed and saved."""
    studies = {
        (model, data_set): {
            key: str(value) for key, value in {**study, "model": name, **_state(name), **labels, **_versions()}.items()
        }
        for model, name in models.items()
        for data_set, labels in data.items()
    }
    Path(out).mkdir(parents=True, exist_ok=True)
    with folder_locked(out):
        folders = {panel: Path(out, *map(_file_name, panel)) for panel in studies}
        panels = Panels[R](Path(out), folders, study={"study": str(study["study"])})
        for panel, own_study in studies.items():
            check_folder(folders[panel], own_study, work.saved)
        claim_folder(out, panels.study, (_PAGE, *(f"{name}.csv" for name in work.tables), PRINTED))
        return _computed(panels, models, studies, work)


def _computed(
    panels: Panels[R], models: Mapping[str, str], studies: Mapping[Panel, Mapping[str, str]], work: PanelMaker[R]
) -> Panels[R]:
    """The panels, after their folders were checked; models are loaded one after the other, and freed."""
    say, out = progress_printer(), panels.out
    for panel, folder in panels.folders.items():
        with suppress(ValueError, FileNotFoundError):  # it is damaged, or not there yet
            panels.results[panel] = work.read(folder)
    todo = [panel for panel in studies if panel not in panels.results]
    if panels.results:
        say(f"{len(panels.results)} of {len(studies)} panels are in {out} already")
    with until_interrupted() as stopped:
        for name in dict.fromkeys(name for name, _ in todo):
            model, n_printed = None, len(panels.notes)
            with panels.leaving_out(name), panels.stage(f"loading {name}"):
                model = work.load(*_split_revision(models[name]))
            for panel in (panel for panel in todo if panel[0] == name and model is not None):
                title = ", ".join(filter(None, panel))
                with panels.leaving_out(title), panels.stage(title):
                    claim_folder(panels.folders[panel], studies[panel], work.saved)
                    panels.results[panel] = work.compute(model, panel[1], panels.folders[panel])
                done = f"{todo.index(panel) + 1} of {len(todo)} panels are done; Ctrl-C keeps them"
                say("; ".join([*panels.notes[n_printed:], done]))
                n_printed = len(panels.notes)
            if model is None:
                say(panels.notes[-1])
            del model
            free_memory()
    if not panels.results and stopped.interrupted:
        raise KeyboardInterrupt(f"Interrupted before a panel was finished; the same command goes on in {out}.")
    if not panels.results:
        raise ValueError(f"no panel could be made: {'; '.join(panels.notes)}")
    if stopped.interrupted:
        panels.interrupted = True
        panels.notes.append("interrupted: the same command goes on with the panels that are missing")
    panels.results = {panel: panels.results[panel] for panel in studies if panel in panels.results}
    return panels


def joined(parts: Iterable[tuple[Mapping[str, Any], pd.DataFrame]]) -> pd.DataFrame:
    """Tables below each other, with the labels of each table as the first columns of its rows."""
    tables = [pd.concat([pd.DataFrame(labels, index=part.index), part], axis=1) for labels, part in parts]
    return pd.concat(tables, ignore_index=True)


def short_names(names: Any, argument: str) -> dict[str, Any]:
    """Full names of models or data sets by short ones: a path by the name of its file; a mapping stays as it is."""
    if isinstance(names, Mapping):
        check_different([*names], argument)
        return dict(names)
    listed: list[Any] = [names] if isinstance(names, (str, Path)) else [*entries(names, argument, "names")]
    if strange := [one for one in listed if not isinstance(one, (str, Path))]:
        raise ValueError(f"{argument} contains a {type(strange[0]).__name__}; give names, folders or files")
    paths = [Path(name).expanduser() for name in listed]
    full = [str(path.resolve()) if path.exists() else str(name) for name, path in zip(listed, paths, strict=True)]
    check_different(full, argument)
    short = [_short(name) for name in full]
    return {one if short.count(one) == 1 else name: name for one, name in zip(short, full, strict=True)}


def check_different(names: Sequence[str], argument: str) -> None:
    """Check that there are names and that none is repeated."""
    if not names:
        raise ValueError(f"{argument} is empty; give at least one")
    if twice := [name for name in dict.fromkeys(names) if list(names).count(name) > 1]:
        raise ValueError(f"{argument} contains {twice[0]!r} twice; give each once")


def file_hashes(names: Iterable[str]) -> dict[str, str]:
    """A short hash of each name that is a file, by its full path."""
    return {name: file_sha256(Path(name))[:16] for name in names if Path(name).is_absolute()}


def _split_revision(name: str) -> tuple[str, str | None]:
    """A hub name and its revision, if it has one."""
    if os.path.exists(name) or "@" not in name:
        return name, None
    base, _, revision = name.rpartition("@")
    return base, revision


def _file_name(name: str) -> str:
    """A name that every file system allows."""
    return re.sub(r"[^\w.@-]+", "_", name).strip("._")


def _versions() -> dict[str, str]:
    """The versions of the libraries on which numbers depend."""
    libraries = ("transformer-lens", "transformers", "torch")
    return {"mechheads": __version__} | {name: importlib.metadata.version(name) for name in libraries}


def _state(model: str) -> dict[str, str]:
    """Names, sizes and times of a local model's files as a hash; empty for models of the hub."""
    path = Path(model)
    if not path.is_absolute() or not path.exists():
        return {}
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    return {"files of the model": short_hash(stats)}


def _short(name: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        return name
    return path.name if path.is_dir() else path.stem


def _page(title: str, text: str, tables: Mapping[str, pd.DataFrame], notes: Iterable[str], figure: go.Figure) -> str:
    """A page that shows a figure below its tables, and needs no network."""
    from plotly.offline import get_plotlyjs

    drawn = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
    shown = "".join(html_table(table, choose=False) for table in _shown(tables))
    listed = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style><script>{get_plotlyjs()}</script></head><body>"
        f"<h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{shown}{listed}"
        f'<div class="figure">{drawn}</div></body></html>'
    )
