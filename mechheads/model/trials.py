"""What the trial of a model at loading has found, kept in the cache folder for the next process.

A trial runs a model a dozen times, which takes longer than reading its weights. What it finds depends on the model's
files, on how they are loaded, on this package and the libraries, and on what computes. All of these stand beside what
was found: if one of them differs, the model is tried again, and the new findings replace the old ones. A few numbers
that the model gave stand there too, and a model that gives others is also tried again.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mechheads._version import __version__
from mechheads.io.text import read_json
from mechheads.io.write import write_file
from mechheads.model.backends.base import Backend
from mechheads.model.sources.converted_models import cache_directory, file_mark

_WORTH = 10**7
"""A model of fewer numbers is tried each time, which takes a moment."""
_SHOWN = 64
"""So many numbers of the last token's final state are kept."""


@dataclass(frozen=True)
class Note:
    """Where the findings about a model are kept, and all that they depend on."""

    file: Path
    depends_on: Mapping[str, Any]

    @classmethod
    def of(cls, model: Any, files: Mapping[str, str] | None, **how: Any) -> Note | None:
        """The note of a transformers model; None if trying the model is quicker, or if it has more than its files.

        Args:
            files: the marks of the files that the model was read from, by path; None if other things decide what it
                computes.
            how: how it is used, besides its dtype and device.
        """
        if files is None or sum(weight.numel() for weight in model.parameters()) < _WORTH:
            return None
        device = model.device
        used = {
            "dtype": str(model.dtype),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            **how,
        }
        file = cache_directory() / "trials" / f"{_sum_of([sorted(files), used])[:32]}.json"
        libraries = ("torch", "transformers", "transformer-lens", "tokenizers", "safetensors")
        versions = {name: importlib.metadata.version(name) for name in libraries}
        own = {"python": platform.python_version(), "mechheads": __version__, "code": _sum_of(_own_files())}
        instructions = torch.backends.cpu.get_cpu_capability()
        return cls(file, {"files": dict(files), **used, **versions, **own, "instructions": instructions})

    def found(self) -> dict[str, Any] | None:
        """What a trial has found; None if there is nothing, or it depends on something else, or is damaged."""
        try:
            kept = read_json(self.file)
            whole = kept["sha256"] == _sum_of([kept["depends_on"], kept["found"]])
            return kept["found"] if whole and kept["depends_on"] == self.depends_on else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def keep(self, backend: Backend) -> None:
        """Keep what a trial has found. Where the cache cannot be written, the next process tries the model again.

        A layout that had to be given up is not kept: the warning of it belongs to each loading.
        """
        if backend.layout != backend.layouts[0]:
            return
        found = {**backend.found, "numbers": backend.changes.alone(lambda: _numbers(backend))}
        whole = {"depends_on": self.depends_on, "found": found, "sha256": _sum_of([self.depends_on, found])}
        with suppress(OSError, ValueError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.file, json.dumps(whole))


def restored(backend: Backend, found: Mapping[str, Any]) -> bool:
    """Use what a trial has found, and say whether the model still gives the numbers that it gave then."""
    try:
        backend.restore(found)
        now = torch.tensor(backend.changes.alone(lambda: _numbers(backend)))
    except (RuntimeError, TypeError, AttributeError, ValueError, LookupError):
        return False
    then = torch.tensor(found["numbers"])
    return now.shape == then.shape and bool((now - then).abs().max() <= backend.tolerance * then.std().clamp_min(1e-6))


def _numbers(backend: Backend) -> list[float]:
    """Numbers of the last of a few tokens. In its first run, a model also gets the hooks that TransformerLens adds."""
    return backend.run(backend.trial_tokens(1, backend.trial_length))[0, -1, :_SHOWN].float().tolist()


def _own_files() -> list[str]:
    """What differs if a file of this package was changed, whatever its version is."""
    home = Path(__file__).parents[1]
    return [f"{path.relative_to(home)} {file_mark(path)}" for path in sorted(home.rglob("*.py"))]


def _sum_of(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
