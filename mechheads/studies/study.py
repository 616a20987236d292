"""Work in several stages: each is timed and announced, and Ctrl-C keeps what is done."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mechheads.engine.memory import is_out_of_memory
from mechheads.files.checksums import read_sealed_json, sealed_json
from mechheads.files.replacing import write_csv, write_file
from mechheads.ledger.fingerprints import weights_fingerprint
from mechheads.limits import current, show_seconds
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.model.model import Model
from mechheads.model.stored_weights import StoredWeights
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

if TYPE_CHECKING:
    import pandas as pd


_HELD = "study.json"
"""The file that says what a folder of results is of, and which files are its."""
_RESULTS = ("*.nc", "gates.ledger", "profile.ledger", "atlas.json", "figure.html")
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

    def about_more(self, share: float) -> str:
        """How much longer the work takes, from the time of its stages so far and the share of the work that is done.

        >>> from mechheads.studies.study import Stages
        >>> Stages(seconds={"the first of four parts": 20.0}).about_more(1 / 4)
        'about 60 s more'
        """
        return f"about {show_seconds(sum(self.seconds.values()) * (1 / share - 1))} more"

    @property
    def times(self) -> str:
        """The stages with their times, as text."""
        return ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in self.seconds.items())

    @property
    def closing_lines(self) -> list[str]:
        """The last lines of a summary: times and notes."""
        return [f"Time       {self.times or 'none'}", *(f"Note       {note}" for note in self.notes)]


def study_of(model: Model | StoredWeights, **settings: object) -> dict[str, str]:
    """What a study is of: the model with its weights, configuration and tokenizer, and the settings, as text."""
    about = {"model": model.name}
    if isinstance(model, Model):
        about["weights"] = weights_fingerprint(model.model)[:16]
        about["configuration"] = short_hash(model.backend.configuration)
    else:
        about["weights"] = f"as stored, revision {model.revision}"
    if (tokenizer := model.tokenizer) is not None:
        about["tokenizer"] = short_hash([tokenizer.get_vocab(), getattr(tokenizer, "chat_template", None)])
    return about | {name: str(value) for name, value in settings.items()}


def short_hash(about: object) -> str:
    """A hash of 16 characters of what JSON can hold, or of its text."""
    return hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]


def check_folder(folder: str | Path, study: Mapping[str, str]) -> None:
    """Check that a folder holds no results of another study, nor results that nothing says what they are of.

    Raises:
        ValueError: if it does.
    """
    folder = Path(folder)
    held = _held(folder)["study"]
    there = sorted(path.name for kind in _RESULTS for path in folder.glob(kind))
    if there and not (folder / _HELD).is_file():
        raise ValueError(f"{folder} holds {there[0]}, and no {_HELD} that says what it is of. {_ELSEWHERE}")
    if there and (differs := difference(study, held)):
        raise ValueError(f"{folder} holds the results of another study: {differs}. {_ELSEWHERE}")


def difference(study: Mapping[str, str], held: Mapping[str, str]) -> str:
    """The first thing in which a study differs from one that is there already, as text; nothing if they are the same.

    >>> from mechheads.studies.study import difference
    >>> difference({"model": "gpt2", "quick": "True"}, {"model": "gpt2", "quick": "False"})
    "quick is 'False' there and 'True' here"
    """
    differs = [name for name in {**study, **held} if study.get(name) != held.get(name)]
    return f"{differs[0]} is {held.get(differs[0])!r} there and {study.get(differs[0])!r} here" if differs else ""


def claim_folder(folder: str | Path, study: Mapping[str, str], files: Sequence[str] | None = None) -> None:
    """Write down which study a folder is of, before anything of it is there.

    Args:
        files: the files of the study; those of before that are no longer among them are removed. None keeps all.

    Raises:
        ValueError: if the folder holds the results of something else.
    """
    folder = Path(folder)
    check_folder(folder, study)
    folder.mkdir(parents=True, exist_ok=True)
    before = _held(folder)["files"]
    now = before if files is None else list(files)
    write_file(folder / _HELD, sealed_json({"study": dict(study), "files": now}))
    for name in set(before) - set(now):
        (folder / name).unlink(missing_ok=True)


def save_parts(
    folder: str | Path,
    results: Mapping[str, HeadScores | TableResult],
    tables: Mapping[str, pd.DataFrame],
    study: Mapping[str, str] | None = None,
    written: Written | None = None,
) -> list[Path]:
    """Write each result to ``name.nc``, and each table that has rows to ``name.csv``; no file is left half written.

    Args:
        study: what the results are of. The folder remembers it, with its files; those that are no longer among the
            results are removed.
        written: what was written before, which is not written again if nobody has touched its file; updated.

    Raises:
        ValueError: if the folder holds results of another study.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {name: table for name, table in tables.items() if len(table)}
    names = [*(f"{name}.nc" for name in results), *(f"{name}.csv" for name in tables)]
    if study is not None:
        claim_folder(folder, study, names)
    written = {} if written is None else written
    for name, scores in results.items():
        path = (folder / f"{name}.nc").resolve()
        before, stamp = written.get(path, (None, None))
        if before is not scores or stamp != _stamp(path):
            scores.save(path)
            written[path] = scores, _stamp(path)
    for name, table in tables.items():
        write_csv(table, folder / f"{name}.csv")
    return [folder / name for name in names]


Written = dict[Path, tuple[object, tuple[int, int] | None]]
"""The result in each file, and the stamp of the file."""


def _stamp(path: Path) -> tuple[int, int] | None:
    """The time and size of a file; None if there is none."""
    if not path.is_file():
        return None
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def _held(folder: Path) -> dict[str, Any]:
    """The study that a folder holds, and its files."""
    if not (folder / _HELD).is_file():
        return {"study": {}, "files": []}
    found = read_sealed_json(folder / _HELD)
    if not isinstance(found, dict) or set(found) != {"study", "files"} or not isinstance(found["study"], dict):
        raise ValueError(f"{folder / _HELD} is damaged. {_ELSEWHERE}")
    files = [name for name in found["files"] if isinstance(name, str) and Path(name).name == name]
    return {"study": found["study"], "files": files}


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
