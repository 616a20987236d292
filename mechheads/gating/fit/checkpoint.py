"""A checkpoint file from which an interrupted fit continues, with exactly the same result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mechheads.files.tensors import TensorFile, check_marks
from mechheads.gating.fit.descent import State
from mechheads.gating.fit.gates import Rows
from mechheads.ledger.fingerprints import fingerprint
from mechheads.ledger.sweep_key import model_marks
from mechheads.model.backends.state import arithmetic
from mechheads.model.model import Model

_FILE = TensorFile(
    "mechheads gates 2",
    "checkpoint {path} is not a checkpoint of mechheads' gates and was not changed; give another path",
    ("marks", "rows"),
)
_EVERY = 10.0
"""Seconds between two writes."""


def marks_of(model: Model, tasks: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """What identifies a fit: the model, its libraries, the task, and each setting, as text.

    Raises:
        ValueError: if the model carries hooks, which cannot be compared.
    """
    marks = model_marks(model, "checkpoint")
    about = dict(model.provenance())
    versions = about.pop("versions")
    made = {"made of": marks["made of"], "configuration": marks["configuration"], "device": arithmetic(model.device)}
    shown = {name: _plain(value) for name, value in settings.items()}
    return {
        "model": fingerprint(about | made, what="model")[:16],
        "library versions": _plain(versions),
        "task": tasks,
    } | shown


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


class Checkpoint:
    """The states of a fit's descents, in a safetensors file that is replaced as a whole.

    Args:
        path: the file; None to keep nothing.
        marks: returns what identifies this fit; called only if there is a file.
        rows: how many rows to run at once. A file keeps the number of its first call, because another number would
            change the last bits of the result.
        device: the device of the descents.

    Raises:
        ValueError: if the file is not a checkpoint, is damaged, or is from another fit, or its folder does not exist.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        marks: Callable[[], Mapping[str, str]],
        rows: Rows,
        device: torch.device,
    ) -> None:
        self.path = None if path is None else Path(path)
        self.rows = rows
        self._marks = {} if path is None else dict(marks())
        self._device = device
        self._states: dict[str, State] = {}
        self._written = time.monotonic()
        if self.path is None:
            return
        if self.path.exists():
            self._read(self.path)
        elif not self.path.parent.is_dir():
            raise ValueError(f"checkpoint: there is no folder {self.path.parent} for {self.path}; create it first")

    def state(self, name: str) -> State | None:
        """The state of the descent of that name; None if it has not begun."""
        return self._states.get(name)

    def see(self, name: str, state: State) -> None:
        """Record a state. It is written every few seconds, and when its descent is done."""
        self._states[name] = state
        if time.monotonic() - self._written > _EVERY or not state.running.any():
            self.write()

    def write(self) -> None:
        """Write all states. A reader sees either the old file or the new one."""
        self._written = time.monotonic()
        if self.path is None:
            return
        tensors = {
            f"{name}.{part}": tensor.clone()  # safetensors rejects tensors that share memory
            for name, state in self._states.items()
            for part, tensor in state.tensors().items()
        }
        _FILE.write(self.path, tensors, {"marks": json.dumps(self._marks), "rows": json.dumps(asdict(self.rows))})

    def _read(self, path: Path) -> None:
        tensors, about = _FILE.read(path)
        check_marks(path, json.loads(about["marks"]), self._marks, "fit")
        self.rows = Rows(**json.loads(about["rows"]))
        for name in {key.split(".")[0] for key in tensors}:
            begin = f"{name}."
            own = {key.removeprefix(begin): tensor for key, tensor in tensors.items() if key.startswith(begin)}
            self._states[name] = State.from_tensors(own, self._device)
