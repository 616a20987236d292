"""GGUF files: they are checked and converted once to safetensors, which load in a fraction of the time."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transformers
from gguf import GGUFReader

from mechheads.model.sources.converted_models import file_hash, file_mark, kept_folder
from mechheads.model.sources.reading import no_progress_bars, read_model
from mechheads.model.sources.source import ModelSourceError

_CONVERSION = 2
"""Rises whenever ``convert`` writes something else, so that older folders in a cache are not used."""


def converted_folder(file: Path) -> Path:
    """The weights, config and tokenizer of a GGUF file, as a folder in the cache that is made at the first call.

    The key is the file's SHA-256 together with the version of transformers, which decides how the file is read.
    The scaling of rotations, which transformers passes over, is in the config. The folder stores the numbers that
    transformers reads from the file, each tensor in the smallest dtype that represents them exactly: float32 for
    quantised weights, 4 bytes per number. Once it is there, the file is not parsed again.

    Raises:
        ModelSourceError: if the file is not a GGUF file, is damaged or does not describe a model, or the cache cannot
            be written.
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
    """How many numbers the tensors of a GGUF file hold.

    Raises:
        ModelSourceError: if it is not a GGUF file, or is cut short or damaged.
    """
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
