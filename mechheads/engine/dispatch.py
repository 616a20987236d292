"""Giving batches to workers that have the same model until all are done, whatever happens to the workers."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
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
from mechheads.scale.ray_cluster import Lost, Ray, Ready, Request, Setup, library

Values = Sequence[np.ndarray] | np.ndarray
"""The values of each unit of a batch."""

_LIVES = 3
"""How many workers a unit may take with it, and how many times a worker may fail to start."""
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


@dataclass
class _Task:
    """A batch to compute; ``lost``: how many workers ended with it."""

    batch: Batch
    lost: int = 0


class Dispatch:
    """Gives batches to workers, one at a time to each.

    If a worker ends, its batch is computed again after the others, so that troubles that have nothing to do with it
    rarely meet it again. After the second time, the units of the batch are computed one by one. A unit that takes three
    workers with it is left out, with a warning that names it.

    Args:
        setup: what workers need before they can compute.
        chunks: how many units fit into memory together, as far as this was found out.
        take: gets the units of each batch and their values.
    """

    def __init__(
        self, workers: Ray, setup: Setup, chunks: Chunks, take: Callable[[Sequence[Any], Values], object]
    ) -> None:
        self._workers, self._setup, self._chunks, self._take = workers, setup, chunks, take
        self._waiting: deque[_Task] = deque()
        self._flying: dict[int, _Task | None] = {}  # what each worker does; None while it gets ready
        self._ready: set[int] = set()
        self._failed_starts: Counter[int] = Counter()

    def run(self, batches: Sequence[Batch]) -> bool:
        """Compute all batches; after Ctrl-C only those in flight.

        Workers that still get ready when everything is done go on, for the next analysis.

        Returns:
            Whether Ctrl-C stopped the work.
        """
        self._waiting.extend(map(_Task, batches))
        with first_ctrl_c_waits("finishing the units in flight; press Ctrl-C again to stop now") as pressed:
            shared = self._workers.share(self._setup)
            try:
                while self._waiting or self._computing:
                    self._send(shared)
                    for replica, answer in self._workers.collect(_TICK):
                        self._receive(replica, answer)
                    if pressed():
                        self._waiting.clear()
            finally:
                for replica in self._computing:
                    self._workers.stop(replica)
            return pressed()

    @property
    def _computing(self) -> list[int]:
        """The workers that have units; the others in flight get ready."""
        return [replica for replica, task in self._flying.items() if task is not None]

    def _send(self, shared: Any) -> None:
        """Give every idle worker something to do, the workers that are ready first."""
        idle = [one for one in range(self._workers.replicas) if one not in self._flying and not self._left_out(one)]
        for replica in sorted(idle, key=lambda one: one not in self._ready):
            if replica not in self._ready and len(self._waiting) > len(self._flying) - len(self._computing):
                self._flying[replica] = None
                self._workers.set_up(replica, shared)
            elif replica in self._ready and self._waiting:
                self._flying[replica] = task = self._waiting.popleft()
                self._workers.compute(replica, Request(task.batch, self._chunks.most))

    def _receive(self, replica: int, answer: Any) -> None:
        task = self._flying.pop(replica)
        if isinstance(answer, Lost):
            self._ready.discard(replica)
            self._failed_to_start(replica, answer.why) if task is None else self._lose(replica, task, answer.why)
        elif task is None:
            self._ready.add(replica)
            self._failed_starts[replica] = 0
        else:
            self._chunks.at_most(answer.chunk)
            self._take(task.batch.units, answer.values)

    def _lose(self, replica: int, task: _Task, why: str) -> None:
        """Go on without a worker, and say so: it starts again when it is needed, and its batch goes to the next one."""
        task.lost += 1
        if task.lost < _LIVES:
            warn(
                f"worker {replica} ended while it computed {_show_all(task.batch.units)}; what is finished is kept, "
                "and this is computed again. If it happens often, give a smaller budget or fewer workers. "
                f"{why}"
            )
        if task.lost < _LIVES - 1 or (task.lost < _LIVES and len(task.batch.units) == 1):
            self._waiting.append(task)
        elif len(task.batch.units) > 1:
            self._waiting.extend(_Task(Batch(((unit,),)), task.lost) for unit in task.batch.units)
        else:
            warn(
                f"{_show(task.batch.units[0])} ended {_LIVES} workers, so it has no value; the last time, {why}\n"
                "What is finished is kept. Give a smaller budget if memory ran out; with store=, the same call tries "
                "it again"
            )

    def _left_out(self, replica: int) -> bool:
        return self._failed_starts[replica] == _LIVES

    def _failed_to_start(self, replica: int, why: str) -> None:
        """Try again, or go on without the worker.

        Raises:
            RuntimeError: if no other one is left.
        """
        self._failed_starts[replica] += 1
        if self._left_out(replica):
            what = f"worker {replica} did not start, {_LIVES} times; the last time, {why}"
            if all(map(self._left_out, range(self._workers.replicas))):
                raise RuntimeError(
                    f"no worker is left: {what}\nWith store=, what is finished is kept, and the same call computes the "
                    "rest; leave workers out to compute it in this process"
                )
            warn(f"{what}\nThe others go on without it")


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
