"""Send units to workers that have the same model, until all are done."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mechheads.ledger.key import is_witness, witness
from mechheads.limits import Workers, settings
from mechheads.messages.notices import first_ctrl_c_waits, warn
from mechheads.model.changes import arithmetic
from mechheads.model.model import Model, source_of
from mechheads.prompts.chats import as_here
from mechheads.scale.ray_cluster import RETRIES, Lost, Ready, Setup, library, pool_of

Values = Sequence[np.ndarray] | np.ndarray
"""The values of each unit of a batch."""

_LOST = 3
"""So many lost requests before the first answer are an error."""
_ENDED = f"ended a worker {RETRIES + 1} times"
_LESS = "Give a smaller budget or fewer workers if memory ran out, or leave workers out to compute in this process"
_RETRY = "What is finished is kept. Give a smaller budget if memory ran out; with store=, the same call tries it again"
_TICK = 1.0
"""The longest time in seconds between two checks for Ctrl-C."""


@dataclass(frozen=True)
class Batch:
    """Units that are computed together, wave by wave; they pickle and hash, and give the same bits in any process."""

    waves: tuple[tuple[Any, ...], ...]

    @property
    def units(self) -> list[Any]:
        return [unit for wave in self.waves for unit in wave]

    def __str__(self) -> str:
        first, *others = self.units
        name = f"{first[0]}, place {first[1]}" if isinstance(first, tuple) else str(first)
        if isinstance(first, frozenset):
            name = f"set {' '.join(map(str, sorted(first)))}"
        return name + (f" and {len(others)} more" if others else "")


def by_workers(workers: Workers, setup: Setup, requests: Sequence[Any], take: Callable[[int, Any], object]) -> bool:
    """Let workers answer requests; ``take`` gets an index and its answer. Returns whether Ctrl-C stopped the rest.
    Ray restarts a worker that ended and repeats its request; one that ends it each time is skipped with a warning."""
    pool, waiting, lost, answered = pool_of(workers), deque(enumerate(requests)), 0, False
    with first_ctrl_c_waits("finishing the units in flight; press Ctrl-C again to stop now") as pressed:
        shared, pending = pool.prepare(setup, len(requests))
        flying: dict[Any, int] = {}
        try:
            while flying or (waiting and not pressed()):
                for one in pool.first_of(pending, _TICK):
                    replica, answer = pending[one], pool.answer(one, pending[one])
                    index = flying.pop(one, None)  # None if it only got ready
                    del pending[one]
                    if isinstance(answer, Lost):
                        lost += 1
                        if not answered and (lost == _LOST or (index is None and not pending)):
                            raise RuntimeError(f"workers: none of them could compute anything; {answer.why}\n{_LESS}")
                        if index is None:
                            continue
                        warn(f"{requests[index]} {_ENDED}, so it has no value; {answer.why}\n{_RETRY}")
                    elif index is not None:
                        answered = True
                        take(index, answer)
                    if waiting and not pressed():
                        index, request = waiting.popleft()
                        new = pool.ask(replica, shared, request)
                        pending[new], flying[new] = replica, index
        finally:
            for one in flying:
                pool.stop(pending[one])
        return pressed()


def each_by_workers(workers: Workers, setup: Setup, units: Sequence[Any], take: Callable[[int, Any], object]) -> bool:
    """Let workers compute units that share nothing but the model, such as windows of text, as ``by_workers`` does."""
    missing = set(range(len(units)))

    def take_one(index: int, value: Any) -> None:
        missing.remove(index)
        take(index, value)

    stopped = by_workers(workers, setup, units, take_one)
    if missing and not stopped:
        raise RuntimeError(
            f"workers: {units[min(missing)]} has no value, and the work cannot go on without it; leave workers "
            "out, or give fewer of them"
        )
    return stopped


def setup_of_each(model: Model, compute: Callable[[Model, Any], Any]) -> Setup:
    """The ``Setup`` for units that share nothing but the model.
    ``compute`` is pickled with all that it needs, because workers have other settings; its value is on the CPU."""
    return setup_of(model, partial(partial, compute))


@dataclass(frozen=True)
class _OnSameModel:
    """A recipe for a worker, whose model must give the driver's numbers; ``reading``: how it reads chats."""

    numbers: list[float]
    device: str
    recipe: Callable[[Model], Ready]
    reading: settings

    def __call__(self, model: Model) -> Ready:
        """Follow the recipe with a worker's model, which must be the same, on the same kind of device."""
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


def setup_of(model: Model, recipe: Callable[[Model], Ready], reading: settings | None = None) -> Setup:
    """The ``Setup`` for work on a model; workers read chats as ``reading`` says, by default as this process does."""
    source = source_of(model)
    sent = _OnSameModel(witness(model), arithmetic(model.device), recipe, reading or as_here())
    try:
        packed = library().cloudpickle.dumps(sent)
    except Exception as error:  # any class that is sent may raise any error
        raise ValueError(
            f"workers: this analysis cannot be sent to another process ({type(error).__name__}: {error}); define its "
            "functions and classes in a file of their own and import them, or leave workers out"
        ) from error
    return Setup(hashlib.sha256(packed).hexdigest(), source, model.device.type, packed)
