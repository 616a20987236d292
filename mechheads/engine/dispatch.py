"""Giving batches to workers until all are done, whatever happens to the workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mechheads.engine.batches import Batch, Cut, Values
from mechheads.engine.job import Job
from mechheads.limits import Workers
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


class Dispatch:
    """Gives batches to workers, one at a time to each.

    If a worker ends or does not answer in time, its batch is computed again after the others, so that troubles that
    have nothing to do with it rarely meet it again. After the second time, the units of the
    batch are computed one by one. A unit that takes three workers with it is left out, with a warning that names it.

    Args:
        setup: what workers need before they can compute.
        job: the part of the job to compute.
        take: gets the units of each batch and their values.
        say: shows how fast each worker is.
    """

    def __init__(
        self,
        workers: Workers,
        setup: Setup,
        job: Job,
        take: Callable[[Sequence[Any], Values], object],
        say: Callable[[str], object],
    ) -> None:
        self._workers, self._setup, self._job, self._take, self._say = workers, setup, job, take, say
        self._cut, self._patience = Cut.of(job), job.spec.limits.patience
        self._waiting: deque[_Task] = deque()
        self._flying: dict[int, _Flight] = {}
        self._set_up: set[int] = set()
        self._failed_starts: Counter[int] = Counter()
        self._left_out: set[int] = set()
        self._slowest = 0.0  # the most seconds for the work of one block so far
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
                self._fly(replica, None, self._patience.start)
                self._workers.submit(replica, self._setup)
            elif replica in self._set_up and self._waiting:
                task = self._waiting.popleft()
                self._fly(replica, task, self._seconds(task.batch))
                self._workers.submit(replica, Request(self._setup.key, self._cut, task.batch, self._job.chunks.most))

    def _computing(self) -> int:
        """How many workers have units; the others in flight are being set up."""
        return sum(flight.task is not None for flight in self._flying.values())

    def _fly(self, replica: int, task: _Task | None, seconds: float) -> None:
        now = time.monotonic()
        self._flying[replica] = _Flight(task, now, now + seconds)

    def _seconds(self, batch: Batch) -> float:
        """How long a batch may take: by the plan, or by the slowest batch so far if one is done."""
        blocks = self._blocks(batch)
        if self._slowest:
            return max(self._patience.batch, self._patience.times * self._slowest * blocks)
        plan = self._job.plan
        return self._patience.batch + plan.flops * blocks / (plan.blocks * self._patience.flops)

    def _blocks(self, batch: Batch) -> int:
        return sum(map(self._job.cost, batch.units))

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
                self._job.chunks.at_most(answer.chunk)
                self._finish(replica, flight, flight.task.batch, answer.values)

    def _finish(self, replica: int, flight: _Flight, batch: Batch, values: Values) -> None:
        self._last = now = time.monotonic()
        self._slowest = max(self._slowest, (now - flight.start) / self._blocks(batch))
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
    head, place = unit
    return f"{head}, place {place}"
