"""A file from which an interrupted fit goes on, and ends with the same bits."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from mechheads.fingerprints import fingerprint, model_fingerprint
from mechheads.gating.descent import State
from mechheads.gating.gates import Rows
from mechheads.model import Model
from mechheads.tensor_files import TensorFile

_FILE = TensorFile(
    "mechheads gates 2",
    "checkpoint {path} is not a checkpoint of mechheads' gates and stays as it is; give another path",
    ("marks", "rows"),
)
_EVERY = 10.0
"""Seconds between two writings."""


def marks_of(model: Model, tasks: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """What tells one fit from another: the model, its libraries, the task, and each setting, as text.

    Raises:
        ValueError: if the model carries hooks, which nothing tells apart.
    """
    about = model.provenance()
    versions = about.pop("versions")
    made = {
        "made of": model_fingerprint(model.model, "checkpoint"),
        "configuration": _plain(model.backend.configuration),
    }
    shown = {name: _plain(value) for name, value in settings.items()}
    return {
        "model": fingerprint(about | made, what="model")[:16],
        "library versions": _plain(versions),
        "task": tasks,
    } | shown


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


class Checkpoint:
    """The states of a fit's descents, in a safetensors file that is replaced whole.

    Args:
        path: the file; None keeps nothing.
        marks: gives what tells this fit from another, asked only if there is a file.
        rows: how many rows to run at once: those of the first call, as others would change the last bits.
        device: what the descents work on.

    Raises:
        ValueError: if the file is something else, damaged, or of another fit, or its folder is not there.
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
            raise ValueError(f"checkpoint: there is no folder {self.path.parent} for {self.path}; make it first")

    def state(self, name: str) -> State | None:
        """How far the descent of that name came, if it had begun."""
        return self._states.get(name)

    def see(self, name: str, state: State) -> None:
        """Take note of a state; written every few seconds, and once its descent is done."""
        self._states[name] = state
        if time.monotonic() - self._written > _EVERY or not state.running.any():
            self.write()

    def write(self) -> None:
        """Write all states, so that a reader sees the old file or the new one."""
        self._written = time.monotonic()
        if self.path is None:
            return
        tensors = {
            f"{name}.{part}": tensor.clone()  # a file takes no two that share memory
            for name, state in self._states.items()
            for part, tensor in state.tensors().items()
        }
        _FILE.write(self.path, tensors, {"marks": json.dumps(self._marks), "rows": json.dumps(asdict(self.rows))})

    def _read(self, path: Path) -> None:
        tensors, about = _FILE.read(path)
        there = json.loads(about["marks"])
        for name, mark in self._marks.items():
            if there.get(name) != mark:
                raise ValueError(
                    f"checkpoint {path} is of another fit: its {name} is {there.get(name)}, now it is {mark}; repeat "
                    "the call it was made with, delete it, or give another path"
                )
        self.rows = Rows(**json.loads(about["rows"]))
        for name in {key.split(".")[0] for key in tensors}:
            begin = f"{name}."
            own = {key.removeprefix(begin): tensor for key, tensor in tensors.items() if key.startswith(begin)}
            self._states[name] = State.from_tensors(own, self._device)
