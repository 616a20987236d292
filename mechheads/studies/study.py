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

_HELD = "study.json"
"""The file that says what a folder of results is of, and which files are its."""
_RESULTS = ("*.nc", "*.ledger", "atlas.json")
"""What a folder of results has; without them, a study that found nothing leaves the folder free."""
_ELSEWHERE = "Give another folder, or move or delete this one"

QUICK_RELATIONS = ("country_to_capital", "adjective_to_comparative", "name_copying", "english_to_spanish")
"""The relations of a first look."""


def teller() -> Callable[[str], None]:
    """A function that prints a text on stderr, or does nothing without ``progress``."""
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
        teller()(f"{name} ...")
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
    def or_left_out(self, name: str) -> Iterator[None]:
        """Leave out a stage that raises a ValueError, or for which memory runs out, and note why."""
        try:
            yield
        except (ValueError, MemoryError, RuntimeError) as error:
            if not isinstance(error, ValueError) and not is_out_of_memory(error):
                raise
            why = "memory ran out" if is_out_of_memory(error) else error
            self.note(f"{name} left out: {why}")


def study_of(model: Model, **settings: object) -> dict[str, str]:
    """What a study is of: the model with its weights, configuration and tokenizer, and the settings, as text."""
    metadata = {
        "model": model.name,
        "weights": weights_mark(model.model)[:16],
        "configuration": short_hash(model.backend.configuration),
    }
    if (tokenizer := model.tokenizer) is not None:
        metadata["tokenizer"] = short_hash([tokenizer.get_vocab(), getattr(tokenizer, "chat_template", None)])
    return metadata | {name: str(value) for name, value in settings.items()}


def short_hash(content: object) -> str:
    """A hash of 16 characters of what JSON can hold, or of its text."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def difference(study: Mapping[str, str], held: Mapping[str, str]) -> str:
    """The first thing in which a study differs from one that is there already; nothing if they are the same."""
    differs = [name for name in {**study, **held} if study.get(name) != held.get(name)]
    return f"{differs[0]} is {held.get(differs[0])!r} there and {study.get(differs[0])!r} here" if differs else ""


def check_folder(folder: str | Path, study: Mapping[str, str] | None, files: Iterable[str] = ()) -> None:
    """Check that a folder holds no other study (None: of any), and none of these files that no study wrote there."""
    folder = Path(folder)
    held, own = _held(folder)
    for path in (folder / name for name in files):
        if os.path.lexists(path) and (path.name not in own or not path.is_file()):
            raise ValueError(f"{path} was not written by this study, so it is not replaced. {_ELSEWHERE}")
    there = {path.name for kind in _RESULTS for path in folder.glob(kind)}
    if study is not None and there and not (folder / _HELD).is_file():
        raise ValueError(f"{folder} holds {min(there)}, and no {_HELD} that says what it is of. {_ELSEWHERE}")
    there |= {name for name in own if (folder / name).exists()}
    if study is not None and there and (differs := difference(study, held)):
        raise ValueError(f"{folder} holds the results of another study: {differs}. {_ELSEWHERE}")


def claim_folder(folder: str | Path, study: Mapping[str, str], files: Iterable[str] = ()) -> None:
    """Write down which study a folder is of, and that these files are its own, before they are written."""
    folder, files = Path(folder), list(files)
    check_folder(folder, study, files)
    folder.mkdir(parents=True, exist_ok=True)
    with folder_locked(folder):
        remove_unfinished(folder)
        held, own = _held(folder)
        _hold(folder, study, (own if held == study else set()) | set(files))


def remove_files(folder: str | Path, names: Iterable[str]) -> None:
    """Remove files of the study, and of ledgers what sqlite has beside them."""
    folder = Path(folder)
    with folder_locked(folder):
        study, own = _held(folder)
        gone = own & set(names)
        for path in [folder / f"{name}{ending}" for name in gone for ending in ("", "-wal", "-shm")]:
            path.unlink(missing_ok=True)
        _hold(folder, study, own - gone)


def save_parts(
    folder: str | Path,
    results: Mapping[str, HeadScores | TableResult],
    tables: Mapping[str, pd.DataFrame],
    study: Mapping[str, str],
    texts: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write each result to ``name.nc``, each table with rows to ``name.csv``, and then texts by their names."""
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
        remove_files(folder, {name for name in _held(folder)[1] - set(names) if Path(name).suffix in (".nc", ".csv")})
    return [folder / name for name in names]


def _held(folder: Path) -> tuple[dict[str, str], set[str]]:
    """The study that a folder holds, and the names of its files."""
    path = folder / _HELD
    if not os.path.lexists(path):
        return {}, set()
    found = read_json(path) if path.is_file() else None
    if not isinstance(found, dict) or not isinstance(found.get("study"), dict) or "files" not in found:
        raise ValueError(f"{path} is damaged, or not of mechheads. {_ELSEWHERE}")
    return found["study"], {name for name in found["files"] if Path(name).name == name}


def _hold(folder: Path, study: Mapping[str, str], files: Iterable[str]) -> None:
    write_file(folder / _HELD, json.dumps({"study": dict(study), "files": sorted(files)}, indent=1))


R = TypeVar("R")


def finished(result: R) -> R:
    """A result that is whole; an analysis that was interrupted returns a part of it, and ends the work."""
    found: Any = result
    stop_if(bool(len(getattr(found, "missing", ()))) or bool(found.provenance.get("interrupted")))
    return result
