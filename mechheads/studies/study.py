"""Work in several stages: each is timed and announced, and Ctrl-C keeps what is done."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from mechheads.engine.memory import is_out_of_memory
from mechheads.io.text import read_json
from mechheads.io.write import folder_locked, remove_unfinished, write_csv, write_file
from mechheads.ledger.key import weights_mark
from mechheads.limits import current
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

if TYPE_CHECKING:
    import pandas as pd


_HELD = "study.json"
"""The file that says what a folder of results is of, and which files are its."""
_LEDGER = ".ledger"
_RESULTS = ("*.nc", f"*{_LEDGER}", "atlas.json", "figure.html")
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
    about = {
        "model": model.name,
        "weights": weights_mark(model.model)[:16],
        "configuration": short_hash(model.backend.configuration),
    }
    if (tokenizer := model.tokenizer) is not None:
        about["tokenizer"] = short_hash([tokenizer.get_vocab(), getattr(tokenizer, "chat_template", None)])
    return about | {name: str(value) for name, value in settings.items()}


def short_hash(about: object) -> str:
    """A hash of 16 characters of what JSON can hold, or of its text."""
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def check_folder(folder: str | Path, study: Mapping[str, str], files: Iterable[str] = ()) -> None:
    """Check that results of a study can be written to a folder, and replace nothing but what this study wrote there.

    Args:
        files: the names of the files that are to be written.

    Raises:
        ValueError: if the folder holds results of another study, results that nothing says what they are of, or one of
            the files that was not written here.
    """
    folder = Path(folder)
    held = _held(folder)
    there = {path.name for kind in _RESULTS for path in folder.glob(kind)}
    there |= {name for name in held.files if (folder / name).exists()}
    if there and not (folder / _HELD).is_file():
        raise ValueError(f"{folder} holds {min(there)}, and no {_HELD} that says what it is of. {_ELSEWHERE}")
    if there and (differs := difference(study, held.study)):
        raise ValueError(f"{folder} holds the results of another study: {differs}. {_ELSEWHERE}")
    check_files(folder, files)


def check_files(folder: str | Path, files: Iterable[str]) -> None:
    """Check that nothing of these names is in a folder that no study wrote there.

    Raises:
        ValueError: naming the first one that is.
    """
    folder = Path(folder)
    held = _held(folder).files
    for path in (folder / name for name in files):
        if os.path.lexists(path) and (path.name not in held or not path.is_file()):
            raise ValueError(f"{path} was not written by this study, so it is not replaced. {_ELSEWHERE}")


def difference(study: Mapping[str, str], held: Mapping[str, str]) -> str:
    """The first thing in which a study differs from one that is there already, as text; nothing if they are the same.

    >>> from mechheads.studies.study import difference
    >>> difference({"model": "gpt2", "quick": "True"}, {"model": "gpt2", "quick": "False"})
    "quick is 'False' there and 'True' here"
    """
    differs = [name for name in {**study, **held} if study.get(name) != held.get(name)]
    return f"{differs[0]} is {held.get(differs[0])!r} there and {study.get(differs[0])!r} here" if differs else ""


def claim_folder(folder: str | Path, study: Mapping[str, str], files: Iterable[str] = ()) -> None:
    """Write down which study a folder is of, before anything of it is there.

    Args:
        files: as in ``check_folder``. Ledgers among them belong to the study from now on.

    Raises:
        ValueError: as ``check_folder``, or if another process works in the folder.
    """
    folder, files = Path(folder), list(files)
    check_folder(folder, study, files)
    folder.mkdir(parents=True, exist_ok=True)
    with folder_locked(folder):
        remove_unfinished(folder)
        _hold(folder, study, _held(folder).files | {name for name in files if name.endswith(_LEDGER)})


@contextmanager
def writing(folder: str | Path, files: Iterable[str]) -> Iterator[None]:
    """A block that writes files of the study to its folder, which knows them from then on.

    Raises:
        ValueError: before the block, if one of the files was not written here, or another process works in the folder.
    """
    folder, files = Path(folder), set(files)
    with folder_locked(folder):
        check_files(folder, files)
        held = _held(folder)
        _hold(folder, held.study, held.files, files)
        try:
            yield
        finally:
            held = _held(folder)
            _hold(folder, held.study, held.files)


def remove_ledger(folder: str | Path, name: str) -> None:
    """Remove a ledger of a study from its folder, once nothing needs it any more."""
    folder = Path(folder)
    with folder_locked(folder):
        held = _held(folder)
        if name in held.files:
            for ending in ("", "-wal", "-shm"):
                (folder / f"{name}{ending}").unlink(missing_ok=True)
            _hold(folder, held.study, held.files - {name})


def save_parts(
    folder: str | Path,
    results: Mapping[str, HeadScores | TableResult],
    tables: Mapping[str, pd.DataFrame],
    study: Mapping[str, str] | None = None,
    written: Written | None = None,
    texts: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write each result to ``name.nc``, and each table that has rows to ``name.csv``; no file is left half written.

    Args:
        study: what the results are of. The folder remembers it, with its files; results and tables that are no longer
            among them are removed.
        written: what was written before, which is not written again if nobody has touched its file; updated.
        texts: further files by their names, written last.

    Raises:
        ValueError: if the folder holds results of another study, or a file of one of these names that was not written
            here; nothing is written then.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written, texts = {} if written is None else written, texts or {}
    tables = {f"{name}.csv": table for name, table in tables.items() if len(table)}
    parts = {f"{name}.nc": scores for name, scores in results.items()}
    new = {name: scores for name, scores in parts.items() if not _is_there(folder / name, scores, written)}
    names = [*parts, *tables, *texts]
    with folder_locked(folder):
        if study is not None:
            claim_folder(folder, study)
        with writing(folder, [*new, *tables, *texts]):
            for name, scores in new.items():
                path = (folder / name).resolve()
                scores.save(path)
                written[path] = scores, _stamp(path)
            for name, table in tables.items():
                write_csv(table, folder / name)
            for name, text in texts.items():
                write_file(folder / name, text)
        if study is not None:
            _remove_others(folder, names)
    return [folder / name for name in names]


def _is_there(path: Path, scores: object, written: Written) -> bool:
    """Whether a result is in its file already."""
    before, stamp = written.get(path.resolve(), (None, None))
    return before is scores and stamp is not None and stamp == _stamp(path)


def _remove_others(folder: Path, names: Iterable[str]) -> None:
    """Remove the results and tables of before that are not among these."""
    held = _held(folder)
    for name in held.files - set(names):
        if Path(name).suffix in (".nc", ".csv"):
            (folder / name).unlink(missing_ok=True)
    _hold(folder, held.study, held.files)


Written = dict[Path, tuple[object, tuple[int, int] | None]]
"""The result in each file, and the stamp of the file."""


def _stamp(path: Path) -> tuple[int, int] | None:
    """The time and size of a file; None if there is none."""
    if not path.is_file():
        return None
    about = path.stat()
    return about.st_mtime_ns, about.st_size


class _Held(NamedTuple):
    """The study that a folder holds, and the names of its files."""

    study: dict[str, str]
    files: set[str]


def _held(folder: Path) -> _Held:
    """What ``_hold`` has written."""
    path = folder / _HELD
    if not os.path.lexists(path):
        return _Held({}, set())
    found = read_json(path) if path.is_file() else None
    if not isinstance(found, dict) or not isinstance(found.get("study"), dict) or "files" not in found:
        raise ValueError(f"{path} is damaged, or not of mechheads. {_ELSEWHERE}")
    return _Held(found["study"], {name for name in found["files"] if Path(name).name == name})


def _hold(folder: Path, study: Mapping[str, str], files: Iterable[str], coming: Iterable[str] = ()) -> None:
    """Write down what a folder holds: the files that are there, ledgers, which may still come, and those ``coming``."""
    names = {name for name in files if name.endswith(_LEDGER) or (folder / name).exists()} | set(coming)
    write_file(folder / _HELD, json.dumps({"study": dict(study), "files": sorted(names)}, indent=1))


@runtime_checkable
class MayBePartial(Protocol):
    """A result that lists what an interrupt left out, and may say that there was one."""

    @property
    def missing(self) -> Sized: ...

    @property
    def provenance(self) -> Mapping[str, Any]: ...


def stop_if_partial(result: MayBePartial) -> None:
    """End the work if an analysis was interrupted: it returns a partial result and raises nothing."""
    stop_if(len(result.missing) > 0 or bool(result.provenance.get("interrupted")))
