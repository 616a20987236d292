"""Work in several stages: each is timed and announced, and Ctrl-C keeps what is done."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from mechheads.engine.memory import is_out_of_memory
from mechheads.io.text import read_json
from mechheads.io.write import folder_locked, remove_unfinished, write_csv, write_file
from mechheads.ledger.key import weights_mark
from mechheads.limits import current
from mechheads.messages.notices import stop_if, until_interrupted
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

_STUDY_FILE = "study.json"
"""The file that records the study of a folder of results, and the names of the files that the study wrote."""
_RESULTS = ("*.nc", "*.ledger", "atlas.json")
"""The files of results; a folder without any is free for another study."""
_ELSEWHERE = "Give another folder, or move or delete this one"

QUICK_RELATIONS = ("country_to_capital", "adjective_to_comparative", "name_copying", "english_to_spanish")
"""The relations of a first look."""


def progress_printer() -> Callable[[str], None]:
    """A function that prints a text on stderr, or does nothing if ``progress`` is off."""
    return (lambda text: print(text, file=sys.stderr)) if current().progress else (lambda text: None)


@dataclass
class Stages:
    """The record of work in several stages.

    Attributes:
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work.
        study: what the results are of: the model and its weights, and the settings.
    """

    seconds: dict[str, float] = field(default_factory=dict, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)
    interrupted: bool = field(default=False, kw_only=True)
    study: dict[str, str] = field(default_factory=dict, kw_only=True)

    def note(self, text: str) -> None:
        """Note something, unless it is noted already."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage, and print its name on stderr when it begins."""
        start = time.perf_counter()
        progress_printer()(f"{name} ...")
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end this block only, and note it."""
        with until_interrupted() as interrupts:
            yield
        if interrupts.interrupted:
            self.interrupted = True
            self.notes.append("interrupted: these are the results until then; heads that were not reached are NaN")

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """A block that is left out, with a note, if it raises a ValueError or memory runs out."""
        try:
            yield
        except (ValueError, MemoryError, RuntimeError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            why = "memory ran out" if is_out_of_memory(error) else error
            self.note(f"{name} left out: {why}")


def study_of(model: Model, **settings: object) -> dict[str, str]:
    """What identifies a study: the model with its weights, configuration and tokenizer, and the settings, as text."""
    metadata = {
        "model": model.name,
        "weights": weights_mark(model.model)[:16],
        "configuration": short_hash(model.backend.configuration),
    }
    if (tokenizer := model.tokenizer) is not None:
        metadata["tokenizer"] = short_hash([tokenizer.get_vocab(), getattr(tokenizer, "chat_template", None)])
    return metadata | {name: str(value) for name, value in settings.items()}


def short_hash(content: object) -> str:
    """A hash of 16 characters of a value as JSON; anything that JSON cannot hold counts as its text."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def difference(study: Mapping[str, str], saved: Mapping[str, str]) -> str:
    """The first entry in which a study differs from the saved one, as a text; empty if they are the same."""
    differs = [name for name in {**study, **saved} if study.get(name) != saved.get(name)]
    return f"{differs[0]} is {saved.get(differs[0])!r} there and {study.get(differs[0])!r} here" if differs else ""


def check_folder(folder: str | Path, study: Mapping[str, str] | None, files: Iterable[str] = ()) -> None:
    """Check that a folder has no results of another study (skipped for None), and no such files from elsewhere."""
    folder = Path(folder)
    saved, own = _saved_study(folder)
    for path in (folder / name for name in files):
        if os.path.lexists(path) and (path.name not in own or not path.is_file()):
            raise ValueError(f"{path} was not written by this study, so it is not replaced. {_ELSEWHERE}")
    present = {path.name for kind in _RESULTS for path in folder.glob(kind)}
    if study is not None and present and not (folder / _STUDY_FILE).is_file():
        raise ValueError(f"{folder} holds {min(present)}, and no {_STUDY_FILE} that says what it is of. {_ELSEWHERE}")
    present |= {name for name in own if (folder / name).exists()}
    if study is not None and present and (differs := difference(study, saved)):
        raise ValueError(f"{folder} holds the results of another study: {differs}. {_ELSEWHERE}")


def claim_folder(folder: str | Path, study: Mapping[str, str], files: Iterable[str] = ()) -> None:
    """Record the study of a folder and the names of its files, before they are written."""
    folder, files = Path(folder), list(files)
    check_folder(folder, study, files)
    folder.mkdir(parents=True, exist_ok=True)
    with folder_locked(folder):
        remove_unfinished(folder)
        saved, own = _saved_study(folder)
        _save_study(folder, study, (own if saved == study else set()) | set(files))


def remove_files(folder: str | Path, names: Iterable[str]) -> None:
    """Remove files of the study, and the files that sqlite writes beside ledgers."""
    folder = Path(folder)
    with folder_locked(folder):
        study, own = _saved_study(folder)
        removed = own & set(names)
        for path in [folder / f"{name}{ending}" for name in removed for ending in ("", "-wal", "-shm")]:
            path.unlink(missing_ok=True)
        _save_study(folder, study, own - removed)


def save_parts(
    folder: str | Path,
    results: Mapping[str, HeadScores | TableResult],
    tables: Mapping[str, pd.DataFrame],
    study: Mapping[str, str],
    texts: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write each result to ``name.nc``, each table with rows to ``name.csv``, and each text to the file of its name."""
    folder, texts = Path(folder), texts or {}
    folder.mkdir(parents=True, exist_ok=True)
    parts = {f"{name}.nc": result for name, result in results.items()}
    parts |= {f"{name}.csv": table for name, table in tables.items() if len(table)}
    names = [*parts, *texts]
    with folder_locked(folder):
        claim_folder(folder, study, names)
        for name, part in parts.items():
            write_csv(part, folder / name) if isinstance(part, pd.DataFrame) else part.save(folder / name)
        for name, text in texts.items():
            write_file(folder / name, text)
        outdated = _saved_study(folder)[1] - set(names)
        remove_files(folder, {name for name in outdated if Path(name).suffix in (".nc", ".csv")})
    return [folder / name for name in names]


def _saved_study(folder: Path) -> tuple[dict[str, str], set[str]]:
    """The study of a folder, and the names of its files."""
    path = folder / _STUDY_FILE
    if not os.path.lexists(path):
        return {}, set()
    content = read_json(path) if path.is_file() else None
    if not isinstance(content, dict) or not isinstance(content.get("study"), dict) or "files" not in content:
        raise ValueError(f"{path} is damaged, or not of mechheads. {_ELSEWHERE}")
    return content["study"], {name for name in content["files"] if Path(name).name == name}


def _save_study(folder: Path, study: Mapping[str, str], files: Iterable[str]) -> None:
    write_file(folder / _STUDY_FILE, json.dumps({"study": dict(study), "files": sorted(files)}, indent=1))


R = TypeVar("R")


def finished(result: R) -> R:
    """The same result if it is complete; the result of an interrupted analysis ends the work."""
    checked: Any = result
    stop_if(bool(len(getattr(checked, "missing", ()))) or bool(checked.provenance.get("interrupted")))
    return result
