"""Limit the size of a model by the size of the files that it comes from."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook

from mechheads.files.text import read_json
from mechheads.model.sources.source import ModelSourceError

_SLACK = 2**20
"""How many numbers a model may have that are not in its files, such as computed positions."""


def count_stored(folder: Path) -> int:
    """An upper bound on how many numbers the weights in a folder hold; packed (quantised) weights count one per bit.

    Raises:
        ModelSourceError: if an index or a file of weights is damaged.
    """
    files = {*folder.glob("*.safetensors"), *folder.glob("*.bin")}
    try:
        for index in folder.glob("*.index.json"):
            content = read_json(index)
            places = content.get("weight_map") if isinstance(content, dict) else None
            if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
                raise ValueError(f"{index.name} has no weight_map from tensors to files")
            files |= {folder / file for file in places.values()}
        return sum(_count(file) for file in files if file.is_file())
    except (ValueError, OSError, SafetensorError) as error:
        raise ModelSourceError(f"name_or_path {str(folder)!r} cannot be read as a model: {error}") from error


def _count(file: Path) -> int:
    if file.suffix != ".safetensors":
        return file.stat().st_size
    with safe_open(file, "pt") as stored:
        parts = [stored.get_slice(name) for name in stored.keys()]  # noqa: SIM118 (a file is not a dict)
        if any(part.get_dtype() not in ("F64", "F32", "F16", "BF16") for part in parts):
            return 8 * file.stat().st_size
        return sum(math.prod(part.get_shape()) for part in parts)


@contextmanager
def no_larger_than(numbers: int, source: str) -> Iterator[None]:
    """Inside the ``with`` block, a model may be built with at most this many numbers, twice over for tied weights.

    transformers first builds a model without memory (on the meta device) and then fills it, so the error is raised
    before memory is allocated.

    Raises:
        ModelSourceError: at the first weight that exceeds the limit.
    """
    mine, seen, total = threading.get_ident(), {}, 0

    def count(module: torch.nn.Module, name: str, parameter: Any) -> None:
        nonlocal total
        if threading.get_ident() != mine or parameter is None or not parameter.is_meta or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter  # kept alive, so that its id stays unique
        total += parameter.numel()
        if total > 2 * numbers + _SLACK:
            raise ModelSourceError(
                f"model {source!r}: its config asks for at least {total:,} numbers (the last of them {name}, of shape "
                f"{list(parameter.shape)}), but its files hold {numbers:,}. Its sizes are wrong (hidden_size, "
                "vocab_size, num_hidden_layers, ...), or a file of weights is missing"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
