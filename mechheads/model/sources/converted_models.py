"""What is made once and kept for later processes: folders, among them the weights of GGUF files.

GGUF files are checked and converted to safetensors, which load in a fraction of the time.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import platformdirs
import torch
import transformers
from filelock import FileLock
from gguf import GGUFReader
from safetensors import SafetensorError

from mechheads.io.text import file_sha256
from mechheads.model.sources.reading import no_progress_bars, read_model
from mechheads.model.sources.source import ModelSourceError

_CONVERSION = 2
"""Rises whenever ``convert`` writes something else, so that older folders in a cache are not used."""


def cache_directory() -> Path:
    """The folder in which mechheads keeps its files: ``MECHHEADS_CACHE``, or else the user's cache directory."""
    chosen = os.environ.get("MECHHEADS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("mechheads", appauthor=False)


def kept_folder(name: str, make: Callable[[Path], Path], *, what: str, task: str, size: Callable[[], int]) -> Path:
    """A folder of the cache, made at the first call, completely or not at all; processes that start together wait.

    ``make`` receives an empty folder to work in and returns the one to keep; ``size`` gives its most bytes.
    """
    cache = cache_directory()
    folder = cache / name
    if folder.is_dir():
        return folder
    most = size()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not folder.is_dir():
                if (free := shutil.disk_usage(cache).free) < most:
                    raise OSError(f"{free / 1e9:.1f} GB are free")
                print(f"mechheads: {task} (once, to {folder}, up to {most / 1e9:.1f} GB)", file=sys.stderr)
                _make(folder, make)
    except (OSError, SafetensorError) as error:
        raise ModelSourceError(
            f"{what} cannot be stored in {cache}: {error}; free {most / 1e9:.1f} GB there, or set the environment "
            "variable MECHHEADS_CACHE to another folder"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], Path]) -> None:
    workshop = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(workshop, ignore_errors=True)  # left by a process that was killed
    workshop.mkdir()
    try:
        os.replace(make(workshop), folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def file_mark(file: Path) -> str:
    """A text that changes whenever a file does: inode, size, and when its content and its entry last changed."""
    about = file.stat()
    return "-".join(map(str, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)))


def file_hash(file: Path) -> str:
    """The SHA-256 of a file. It is stored in the cache under ``file_mark``, so an unchanged file is read only once."""
    note = cache_directory() / "hashes" / file_mark(file)
    if note.is_file() and re.fullmatch(r"[0-9a-f]{64}", known := note.read_text("ascii", errors="replace")):
        return known
    found = file_sha256(file)
    unfinished = note.with_name(f"{note.name}.{uuid.uuid4().hex}.tmp")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(found, "ascii")
        if file_mark(file) == note.name:
            os.replace(unfinished, note)
    except OSError:
        pass  # without the stored hash, the next call is only slower
    finally:
        unfinished.unlink(missing_ok=True)
    return found


def converted_folder(file: Path) -> Path:
    """What transformers reads from a GGUF file, as a folder in the cache that is made at the first call.

    Its key is the file's SHA-256 and the version of transformers. Each tensor has the smallest dtype that is exact.
    """
    mark = file_mark(file)

    def make(workshop: Path) -> Path:
        made = convert(file, workshop / "made")
        if file_mark(file) != mark:
            raise ModelSourceError(f"name_or_path {str(file)!r} was changed while it was read; load it again")
        return made

    return kept_folder(
        f"gguf-{file_hash(file)[:16]}-transformers-{transformers.__version__}-{_CONVERSION}",
        make,
        what=f"the converted weights of {file.name}",
        task=f"converting {file.name} to safetensors",
        size=lambda: 4 * count_numbers(file) + 10**7,
    )


def count_numbers(file: Path) -> int:
    """How many numbers the tensors of a GGUF file hold."""
    name = f"name_or_path {str(file)!r}"
    with file.open("rb") as content:
        if content.read(4) != b"GGUF":
            raise ModelSourceError(f"{name} is not a model: it does not begin like a GGUF file")
    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except (ValueError, IndexError, KeyError, OverflowError, RecursionError) as error:
        raise ModelSourceError(
            f"{name} is cut short or damaged: its {os.path.getsize(file):,} bytes end "
            f"before the tensors that its header lists ({error}); download it again"
        ) from error


def convert(file: Path, folder: Path) -> Path:
    """Write a GGUF file's weights, config and tokenizer as transformers saves them, and return the folder."""
    numbers = count_numbers(file)
    model, tokenizer = read_model(file.parent, numbers=numbers, dtype=torch.float32, gguf_file=file.name)
    for parameter in model.parameters():
        parameter.data = _smallest(parameter.data)
    with no_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _smallest(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in half the bytes, if a half-precision dtype holds each of them exactly."""
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal((half := tensor.to(dtype)).to(tensor.dtype), tensor):
            return half
    return tensor
