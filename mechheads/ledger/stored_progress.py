"""Work whose units are long: a ledger keeps how far each has come, and the same call goes on from there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.ledger.ledger import MOVES_ON, Ledger
from mechheads.limits import current

State = TypeVar("State")
"""Where a unit is: a dataclass of tensors and whole numbers, which a step replaces by a new one."""
_EVERY = 5.0
"""Seconds between two writes, at least."""
_SHARE = 0.05
"""The largest share of the time that writing takes: the profile of a 70B model has 300 MB."""


def check_progress() -> None:
    """Check, before expensive work, that progress can be kept where the settings say.

    Raises:
        ValueError: if the store cannot be used, or only a part of the units is wanted.
    """
    if (store := current().store) is not None:
        if current().limits.part is not None:
            raise ValueError("part: each step of this analysis needs all steps before; leave part out")
        Ledger.check(store)


class StoredProgress:
    """How far the units of some work have come, written every few seconds and at the end of a ``with`` block.

    Args:
        ledger: the ledger of the work; None stores nothing.
    """

    def __init__(self, ledger: Ledger | None) -> None:
        if ledger is not None:
            ledger.remember(MOVES_ON, True)
        self._ledger = ledger
        self._stored = {} if ledger is None else ledger.finished()
        self._unwritten: dict[str, tuple[int, Any]] = {}
        self._next = time.monotonic() + _EVERY

    def state(self, name: str, begin: State) -> State:
        """The state from which a unit goes on: the stored one, or ``begin``, which has the same shapes."""
        return _from_row(self._stored.pop(name)[1:], begin) if name in self._stored else begin

    def see(self, name: str, state: Any, done: int) -> None:
        """Note the state of a unit.

        Args:
            done: how far it is; a ledger keeps the state that is furthest.
        """
        self._unwritten[name] = done, state
        if time.monotonic() > self._next:
            self.write()

    def write(self) -> None:
        """Store every state that was noted since the last time."""
        start = time.monotonic()
        if self._ledger is not None:
            for name, (done, state) in self._unwritten.items():
                self._ledger.advance(name, np.concatenate([[done], _to_row(state)]))
        self._unwritten.clear()
        end = time.monotonic()
        self._next = end + max(_EVERY, (end - start) / _SHARE)

    def __enter__(self) -> StoredProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.write()


def _to_row(state: object) -> Float[np.ndarray, " value"]:
    """All numbers of a state; float64 holds each of them exactly."""
    return torch.cat([torch.as_tensor(value).cpu().flatten().double() for value in vars(state).values()]).numpy()


def _from_row(row: Float[np.ndarray, " value"], like: State) -> State:
    """The state whose numbers these are, with the shapes, dtypes and devices of another."""
    fields = vars(like)
    tensors = [torch.as_tensor(value) for value in fields.values()]
    parts = torch.from_numpy(row).split([tensor.numel() for tensor in tensors])
    new: dict[str, Any] = {
        name: part.view(tensor.shape).to(tensor.dtype).to(tensor.device) if isinstance(value, Tensor) else int(part)
        for (name, value), tensor, part in zip(fields.items(), tensors, parts, strict=True)
    }
    return replace(like, **new)  # type: ignore[type-var]
