"""Giving batches to workers that have the same model until all are done."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechheads.engine.memory import Chunks
from mechheads.heads import in_order
from mechheads.ledger.key import is_witness, witness
from mechheads.messages.interrupted import first_ctrl_c_waits
from mechheads.messages.warn import warn
from mechheads.model.backends.state import arithmetic
from mechheads.model.model import Model, source_of
from mechheads.prompts.templates import as_here
from mechheads.scale.ray_cluster import RETRIES, Lost, Ray, Ready, Request, Setup, library

Values = Sequence[np.ndarray] | np.ndarray
"""The values of each unit of a batch."""

_LOST = 3
"""So many batches may be lost before one is computed."""
_TICK = 1.0
"""The longest wait in seconds before Ctrl-C is looked at."""


@dataclass(frozen=True)
class Batch:
    """Units that are computed together, here or in another process, with the same bits in both.

    Attributes:
        waves: the units of each wave. A unit is anything that pickles and hashes, such as a head and a place.
    """

    waves: tuple[tuple[Any, ...], ...]

    @property
    def units(self) -> list[Any]:
        return [unit for wave in self.waves for unit in wave]


class Dispatch:
    """Gives batches to workers, one at a time to each.

    Ray starts a worker that ends again, and repeats its batch. What ends its worker each time is left out, with a
    warning that names it.

    Args:
        setup: what workers need before they can compute.
        chunks: how many units fit into memory together, as far as this was found out.
        take: gets the units of each batch and their values.
    """

    def __init__(
        self, workers: Ray, setup: Setup, chunks: Chunks, take: Callable[[Sequence[Any], Values], object]
    ) -> None:
        self._workers, self._setup, self._chunks, self._take = workers, setup, chunks, take
        self._waiting: deque[Batch] = deque()
        self._flying: dict[int, Batch] = {}
        self._ready: set[int] = set()
        self._lost = 0

    def run(self, batches: Sequence[Batch]) -> bool:
        """Compute all batches; after Ctrl-C only those in flight.

        Returns:
            Whether Ctrl-C stopped the work.

        Raises:
            RuntimeError: if batch after batch is lost and none is computed.
        """
        self._waiting.extend(batches)
        with first_ctrl_c_waits("finishing the units in flight; press Ctrl-C again to stop now") as pressed:
            shared = self._workers.share(self._setup)
            try:
                while self._waiting or self._flying:
                    self._send(shared)
                    for replica, answer in self._workers.collect(_TICK):
                        self._receive(replica, self._flying.pop(replica), answer)
                    if pressed():
                        self._waiting.clear()
            finally:
                for replica in self._flying:
                    self._workers.stop(replica)
            return pressed()

    def _send(self, shared: Any) -> None:
        """Give every idle worker a batch; the last batches go to workers that are ready, if others are not yet."""
        idle = [one for one in range(self._workers.replicas) if one not in self._flying]
        late = [one for one in self._flying if one not in self._ready]
        free = 0 if self._waiting else len(self._ready.intersection(idle))
        for replica in late[:free]:
            self._waiting.append(self._flying.pop(replica))
            self._workers.forget(replica)
        for replica in sorted(idle, key=lambda one: one not in self._ready):
            if self._waiting:
                self._flying[replica] = batch = self._waiting.popleft()
                self._workers.compute(replica, shared, Request(batch, self._chunks.most))

    def _receive(self, replica: int, batch: Batch, answer: Any) -> None:
        if not isinstance(answer, Lost):
            self._ready.add(replica)
            self._chunks.at_most(answer.chunk)
            self._take(batch.units, answer.values)
            return
        self._lost += 1
        if self._lost == _LOST and not self._ready:
            raise RuntimeError(
                f"workers: none of them could compute anything; the last time, {answer.why}\nGive a smaller budget or "
                "fewer workers if memory ran out, or leave workers out to compute in this process"
            )
        warn(
            f"{_show_all(batch.units)} ended a worker {RETRIES + 1} times, so it has no value; the last time, "
            f"{answer.why}\nWhat is finished is kept. Give a smaller budget if memory ran out; with store=, the same "
            "call tries it again"
        )


def _show_all(units: Sequence[Any]) -> str:
    """The name of the first unit, and how many more there are."""
    return _show(units[0]) + (f" and {len(units) - 1} more" if len(units) > 1 else "")


def _show(unit: Any) -> str:
    """The name of a unit in messages."""
    if isinstance(unit, frozenset):
        return f"set {' '.join(map(str, in_order(unit)))}"
    return f"{unit[0]}, place {unit[1]}" if isinstance(unit, tuple) else str(unit)


@dataclass(frozen=True)
class _OnSameModel:
    """A recipe that workers follow with the model of their driver, or not at all.

    Attributes:
        numbers: some that the model gives.
        device: the kind of device that it is on.
        reading: how the driver reads chats.
    """

    numbers: list[float]
    device: str
    recipe: Callable[[Model], Ready]
    reading: as_here

    def __call__(self, model: Model) -> Ready:
        """What the recipe makes of a worker's model.

        Raises:
            ValueError: if it is another model, or on another kind of device.
        """
        if (here := arithmetic(model.device)) != self.device:
            raise ValueError(
                f"workers: the model is on {self.device} in this process and on {here} on a worker, which rounds "
                'differently; load it on the same kind of device, such as mh.load(device="cuda")'
            )
        if not is_witness(model, self.numbers):
            raise ValueError(
                f"workers: model {model.name!r} gives other log-probabilities on a worker than in this process: here "
                "it carries a hook or its weights were changed after it was loaded, or the worker has other files. "
                "Save a changed model with save_pretrained and load the folder with mh.load, or leave workers out"
            )
        return self.reading(self.reading(self.recipe)(model))


def setup_of(model: Model, recipe: Callable[[Model], Ready], reading: as_here | None = None) -> Setup:
    """What workers need for work on a model.

    Args:
        reading: how chats are read; by default as here.

    Raises:
        ValueError: if workers cannot load the model, or the recipe cannot be sent.
    """
    source = source_of(model)
    sent = _OnSameModel(witness(model), arithmetic(model.device), recipe, reading or as_here())
    try:
        packed = library().cloudpickle.dumps(sent)
    except Exception as error:  # the class of anything that is sent may raise what it likes
        raise ValueError(
            f"workers: this analysis cannot be sent to another process ({type(error).__name__}: {error}); define its "
            "functions and classes in a file of their own and import them, or leave workers out"
        ) from error
    return Setup(hashlib.sha256(packed).hexdigest(), source, model.device.type, packed)
