"""The panels of a figure, computed model by model; finished ones are kept in the figure's folder."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from mechheads.engine.memory import is_out_of_memory
from mechheads.limits import DEFAULT_LIMITS, Limits
from mechheads.messages.interrupted import until_interrupted
from mechheads.model.freeing import free_memory
from mechheads.studies.figures.request import FigureRequest, read_request, short_names, split_revision, write_request
from mechheads.studies.study import about_seconds, check_folder, teller

M = TypeVar("M")
R = TypeVar("R")
FILE = "figure.json"


@dataclass(frozen=True)
class Work(Generic[M, R]):
    """How the panels of a figure are made.

    Attributes:
        load: loads a model, by its name and revision.
        estimate: the seconds that panels of a model will take in this process, by the names of their data sets; None
            if not known.
        compute: computes the panel of a model and a data set, and saves it in a folder. Ctrl-C raises an exception.
        read: reads what ``compute`` saved.
        limits: with the workers that ``compute`` uses, if it does.
    """

    load: Callable[[str, str | None], M]
    estimate: Callable[[M, Sequence[str]], float | None]
    compute: Callable[[M, str, Path], R]
    read: Callable[[Path], R]
    limits: Limits = DEFAULT_LIMITS


@dataclass
class Panels(Generic[R]):
    """What became of the panels.

    Attributes:
        results: the result of each panel by model and data set, or the reason why there is none.
        files: the files of the panels.
        interrupted: whether Ctrl-C ended the work.
    """

    results: dict[tuple[str, str], R | str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    interrupted: bool = False

    @property
    def failures(self) -> dict[tuple[str, str], str]:
        """Why panels have no result."""
        return {panel: found for panel, found in self.results.items() if isinstance(found, str)}


class FigureFolder:
    """The folder of a figure: its request in ``figure.json``, and a folder for the files of each panel.

    Raises:
        ValueError: if the folder holds work of another request.
    """

    def __init__(self, path: str | Path, request: FigureRequest) -> None:
        self.path, self.request = Path(path), request
        self.names = short_names(request.models)
        self._kept: dict[tuple[str, str], dict[str, Any]] = {}
        if (self.path / FILE).exists():
            there, panels = read_request(self.path / FILE)
            differences = there.differences(request)
            begun = any(panel["state"] == "done" for panel in panels) or any(self.path.rglob("*.checkpoint"))
            if differences and begun:
                raise ValueError(
                    f"out: {self.path} holds a figure of another request ({'; '.join(differences)}); repeat "
                    "the request that it holds, or give another folder"
                )
            self._kept = {} if differences else {(panel["model"], panel["data"]): panel for panel in panels}
        elif self.path.is_file():
            raise ValueError(f"out: {self.path} is a file; give a folder")
        else:
            check_folder(self.path, {"study": "figure"})

    def folder(self, model: str, data: str) -> Path:
        """The folder of a panel's files."""
        number = self.request.models.index(model) + 1
        folder = self.path / f"{number}_{_file_name(self.names[model])}"
        return folder / f"{self.request.data.index(data) + 1}_{_file_name(data)}" if data else folder

    def kept(self, model: str, data: str, read: Callable[[Path], R]) -> R | None:
        """A finished panel; None if it is missing or damaged, or its model has changed since."""
        entry = self._kept.get((model, data), {})
        if entry.get("state") != "done" or entry.get("source") != _source(model):
            return None
        try:
            return read(self.folder(model, data))
        except (ValueError, FileNotFoundError):
            return None

    def begin(self, model: str, data: str) -> Path:
        """A panel's folder, empty if its model has changed since something was written there."""
        place, entry = self.folder(model, data), self._kept.get((model, data))
        if entry is not None and entry.get("source") != _source(model):
            shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True, exist_ok=True)
        self.record((model, data), "begun")
        return place

    def record(self, panel: tuple[str, str], state: str, **about: Any) -> None:
        """Note what became of a panel."""
        model, data = panel
        entry = {"model": model, "data": data, "state": state, "source": _source(model), **about}
        self._kept[panel] = {name: value for name, value in entry.items() if value is not None}
        self.write()

    def write(self) -> None:
        """Write ``figure.json``."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_request(self.path / FILE, self.request, [self._kept[p] for p in self.request.panels if p in self._kept])


def compute_panels(folder: FigureFolder, work: Work[M, R], *, progress: bool) -> Panels[R]:
    """The panels of a figure: those in the folder as they are, the others computed and saved.

    Models are loaded one after the other, and freed. After Ctrl-C, the panels so far.

    Raises:
        ValueError: if no panel could be made; the message says why.
        KeyboardInterrupt: after Ctrl-C, if no panel is finished.
    """
    panels: Panels[R] = Panels()
    folder.write()
    for model, data in folder.request.panels:
        if (found := folder.kept(model, data, work.read)) is not None:
            panels.results[model, data] = found
    missing = {
        model: [data for data in folder.request.data if (model, data) not in panels.results]
        for model in folder.request.models
    }
    say = teller(progress)
    if panels.results:
        say(f"{len(panels.results)} of {len(folder.request.panels)} panels are in {folder.path} already")
    with until_interrupted() as stopped:
        for number, (model, todo) in enumerate(missing.items(), 1):
            if todo:
                say(f"Model {number} of {len(missing)}: {folder.names[model]}")
                _compute_model(folder, work, (model, todo), panels, say)
                free_memory()
    panels.interrupted = stopped.interrupted
    done = [panel for panel, found in panels.results.items() if not isinstance(found, str)]
    if not done and stopped.interrupted:
        raise KeyboardInterrupt(f"Interrupted before a panel was finished; the same command goes on in {folder.path}.")
    if not done:
        reasons = "; ".join(f"{folder.names[model]}: {why}" for (model, _), why in panels.failures.items())
        raise ValueError(f"no panel could be made: {reasons}")
    order = [panel for panel in folder.request.panels if panel in panels.results]
    panels.results = {panel: panels.results[panel] for panel in order}
    panels.files = [file for panel in done for file in sorted(folder.folder(*panel).glob("*.nc"))]
    return panels


def _compute_model(
    folder: FigureFolder,
    work: Work[M, R],
    missing: tuple[str, list[str]],
    panels: Panels[R],
    say: Callable[[str], None],
) -> None:
    """Compute the missing panels of one model; each that fails has its reason as its result."""
    name, todo = missing

    def fail(data: str, error: Exception) -> None:
        why = "memory ran out" if is_out_of_memory(error) else str(error)
        say(f"  left out{f' {data}' if data else ''}: {why}")
        panels.results[name, data] = why
        folder.record((name, data), "failed", why=why)

    try:
        model = work.load(*split_revision(name))
    except (ValueError, MemoryError, RuntimeError) as error:
        _check_expected(error)
        for data in todo:
            fail(data, error)
        return
    try:
        seconds = work.estimate(model, todo)
        about = "" if seconds is None else f", {about_seconds(seconds, work.limits)}"
    except (ValueError, MemoryError, RuntimeError) as error:
        _check_expected(error)
        about = ""
    say(f"  {model!r}{about}; Ctrl-C keeps finished panels")
    for data in todo:
        start, place = time.perf_counter(), folder.begin(name, data)
        try:
            panels.results[name, data] = work.compute(model, data, place)
        except (ValueError, MemoryError, RuntimeError) as error:
            _check_expected(error)
            fail(data, error)
            continue
        taken = round(time.perf_counter() - start, 1)
        folder.record((name, data), "done", revision=getattr(model, "revision", None), seconds=taken)


def _check_expected(error: Exception) -> None:
    """Raise an error again that is neither about a model nor about memory."""
    if not isinstance(error, ValueError) and not is_out_of_memory(error):
        raise error


def _source(model: str) -> str | None:
    """What tells whether a local model has changed: names, sizes and times of its files; None for other models."""
    path = Path(model)
    if not path.is_absolute() or not path.exists():
        return None
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    state = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _file_name(name: str) -> str:
    """A name that any file system takes.

    >>> _file_name("EleutherAI/pythia-70m@step3000")
    'EleutherAI_pythia-70m_step3000'
    """
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[:60] or "data"
