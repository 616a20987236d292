"""Giving batches to workers until all are done, whatever happens to the workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mechheads.engine.batches import Batch, Cut, Values
from mechheads.engine.job import Job
from mechheads.engine.memory import Chunks
from mechheads.limits import Patience, Workers
from mechheads.messages.interrupted import first_ctrl_c_waits
from mechheads.messages.warn import warn
from mechheads.units import show_seconds
from mechheads.workers.messages import Answer, Lost, Request, Setup

_LIVES = 3
"""How many workers a unit may take with it, and how many times a worker may fail to start."""
_TAIL = 30.0
"""How many seconds after the last batch workers that still start are waited for, so that the next analysis has them."""
_TICK = 1.0
"""The longest wait in seconds before deadlines and Ctrl-C are looked at."""


@dataclass
class _Task:
    """A batch to compute; ``lost``: how many workers ended with it."""

    batch: Batch
    lost: int = 0


@dataclass
class _Flight:
    """What a worker is doing since ``start``, until ``deadline``; ``task`` is None while it is set up."""

    task: _Task | None
    start: float
    deadline: float


@dataclass(frozen=True)
class Load:
    """What has to be known of units to give them to workers.

    Attributes:
        cut: what workers are told besides the units; see ``Ready.compute``.
        cost: how much a unit costs, compared with others.
        flops: about how many floating-point operations a cost of 1 takes.
        chunks: how many units fit into memory together, as far as this was found out.
    """

    cut: Any
    patience: Patience
    cost: Callable[[Any], int]
    flops: float
    chunks: Chunks

    @classmethod
    def of(cls, job: Job) -> Load:
        """The load of a part of a job."""
        return cls(Cut.of(job), job.spec.limits.patience, job.cost, job.plan.flops / job.plan.blocks, job.chunks)


class Dispatch:
    """Gives batches to workers, one at a time to each.

    If a worker ends or does not answer in time, its batch is computed again after the others, so that troubles that
    have nothing to do with it rarely meet it again. After the second time, the units of the
    batch are computed one by one. A unit that takes three workers with it is left out, with a warning that names it.

    Args:
        setup: what workers need before they can compute.
        load: what has to be known of the units.
        take: gets the units of each batch and their values.
        say: shows how fast each worker is.
    """

    def __init__(
        self,
        workers: Workers,
        setup: Setup,
        load: Load,
        take: Callable[[Sequence[Any], Values], object],
        say: Callable[[str], object],
    ) -> None:
        self._workers, self._setup, self._load, self._take, self._say = workers, setup, load, take, say
        self._waiting: deque[_Task] = deque()
        self._flying: dict[int, _Flight] = {}
        self._set_up: set[int] = set()
        self._failed_starts: Counter[int] = Counter()
        self._left_out: set[int] = set()
        self._slowest = 0.0  # the most seconds for a cost of 1 so far
        self._done: Counter[int] = Counter()
        self._begin = self._last = time.monotonic()

    def run(self, batches: Sequence[Batch]) -> bool:
        """Compute all batches; after Ctrl-C only those in flight.

        Returns:
            Whether Ctrl-C stopped the work.
        """
        self._waiting.extend(map(_Task, batches))
        with first_ctrl_c_waits("finishing the units in flight; press Ctrl-C again to stop now") as pressed:
            try:
                while self._waiting or self._flying:
                    if pressed():
                        self._waiting.clear()
                        self._stop([replica for replica, flight in self._flying.items() if flight.task is None])
                    self._send()
                    for replica, answer in self._workers.collect(_TICK):
                        self._receive(replica, answer)
                    self._stop_late()
            finally:
                self._stop(list(self._flying))
            return pressed()

    def _send(self) -> None:
        """Give every idle worker something to do, the workers that are ready first."""
        busy = self._left_out | set(self._flying)
        idle = [replica for replica in range(self._workers.replicas) if replica not in busy]
        for replica in sorted(idle, key=lambda replica: replica not in self._set_up):
            if replica not in self._set_up and len(self._waiting) > len(self._flying) - self._computing():
                self._fly(replica, None, self._load.patience.start)
                self._workers.submit(replica, self._setup)
            elif replica in self._set_up and self._waiting:
                task = self._waiting.popleft()
                self._fly(replica, task, self._seconds(task.batch))
                self._workers.submit(
                    replica, Request(self._setup.key, self._load.cut, task.batch, self._load.chunks.most)
                )

    def _computing(self) -> int:
        """How many workers have units; the others in flight are being set up."""
        return sum(flight.task is not None for flight in self._flying.values())

    def _fly(self, replica: int, task: _Task | None, seconds: float) -> None:
        now = time.monotonic()
        self._flying[replica] = _Flight(task, now, now + seconds)

    def _seconds(self, batch: Batch) -> float:
        """How long a batch may take: by the plan, or by the slowest batch so far if one is done."""
        cost, patience = self._cost(batch), self._load.patience
        if self._slowest:
            return max(patience.batch, patience.times * self._slowest * cost)
        return patience.batch + self._load.flops * cost / patience.flops

    def _cost(self, batch: Batch) -> int:
        return sum(map(self._load.cost, batch.units))

    def _receive(self, replica: int, answer: Answer | Lost) -> None:
        flight = self._flying.pop(replica, None)
        if isinstance(answer, Lost):
            self._lose(replica, flight, answer.why)
        elif flight is not None:
            if answer.error is not None:
                answer.error.add_note(f"On worker {replica}:\n{answer.trace}")
                raise answer.error
            self._set_up.add(replica)
            self._failed_starts[replica] = 0
            if flight.task is not None and answer.values is not None:
                self._load.chunks.at_most(answer.chunk)
                self._finish(replica, flight, flight.task.batch, answer.values)

    def _finish(self, replica: int, flight: _Flight, batch: Batch, values: Values) -> None:
        self._last = now = time.monotonic()
        self._slowest = max(self._slowest, (now - flight.start) / self._cost(batch))
        self._done[replica] += len(batch.units)
        self._take(batch.units, values)
        if now > self._begin:
            speeds = (f"{self._done[one] / (now - self._begin):.2g}" for one in sorted(self._done))
            self._say(f"{', '.join(speeds)} units/s")

    def _lose(self, replica: int, flight: _Flight | None, why: str) -> None:
        """Go on without a worker: it starts again when it is needed, and its batch goes to the next one."""
        self._set_up.discard(replica)
        if flight is None:
            return
        if (task := flight.task) is None:
            self._failed_starts[replica] += 1
            if self._failed_starts[replica] == _LIVES:
                self._leave_out(replica, why)
            return
        task.lost += 1
        if task.lost < _LIVES - 1 or (task.lost < _LIVES and len(task.batch.units) == 1):
            self._waiting.append(task)
        elif len(task.batch.units) > 1:
            self._waiting.extend(_Task(one, task.lost) for one in task.batch.singly())
        else:
            warn(
                f"{_show(task.batch.units[0])} ended {_LIVES} workers, so it has no value; the last time, {why}. Give "
                "a smaller budget if memory ran out; with store=, the same call tries it again"
            )

    def _leave_out(self, replica: int, why: str) -> None:
        """Go on without a worker that does not start.

        Raises:
            RuntimeError: if no other one is left.
        """
        self._left_out.add(replica)
        what = f"worker {replica} did not start, {_LIVES} times; the last time, {why}"
        if len(self._left_out) == self._workers.replicas:
            raise RuntimeError(f"no worker is left: {what}")
        warn(f"{what}\nThe others go on without it")

    def _stop_late(self) -> None:
        """Stop workers that take too long, also to start when there is nothing left to do: a cluster may be full."""
        now = time.monotonic()
        if not self._waiting and not self._computing() and now > self._last + _TAIL:
            self._stop(list(self._flying))
        for replica, flight in list(self._flying.items()):
            if now > flight.deadline:
                self._stop([replica])
                self._lose(replica, flight, f"it gave no answer within {show_seconds(now - flight.start)}")

    def _stop(self, replicas: Sequence[int]) -> None:
        for replica in replicas:
            self._workers.stop(replica)
            self._flying.pop(replica, None)
            self._set_up.discard(replica)


def _show(unit: Any) -> str:
    """The name of a unit in messages."""
    if isinstance(unit, frozenset):
        return f"set {' '.join(map(str, sorted(unit)))}"
    return f"{unit[0]}, place {unit[1]}" if isinstance(unit, tuple) else str(unit)
