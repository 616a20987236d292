"""Workers without processes, whose troubles are written down before."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import torch

from mechheads.workers.messages import Answer, Lost, Request, Setup
from mechheads.workers.replica import Replica

Trouble = Callable[[int, Any], Answer | Lost | None]
"""Gets a replica and its request: what happens instead of an answer, if anything."""


class MadeWorkers:
    """Replicas in this process that answer one after the other.

    Attributes:
        computed: the units that were computed, batch by batch; ``lost``: those of requests that met with trouble.
        stopped: the replicas that were stopped.
    """

    def __init__(self, n: int, trouble: Trouble = lambda replica, request: None) -> None:
        self._n, self._trouble = n, trouble
        self._replicas: dict[int, Replica] = {}
        self._waiting: list[tuple[int, Any]] = []
        self.computed: list[list[Any]] = []
        self.lost: list[list[Any]] = []
        self.stopped: list[int] = []
        self.chunks: list[int | None] = []

    @property
    def replicas(self) -> int:
        return self._n

    def submit(self, replica: int, request: Setup | Request) -> None:
        assert replica not in [one for one, _ in self._waiting], "one request at a time"
        self._waiting.append((replica, pickle.loads(pickle.dumps(request))))

    def collect(self, seconds: float) -> list[tuple[int, Answer | Lost]]:
        if not self._waiting:
            return []
        replica, request = self._waiting.pop(0)
        units = request.batch.units if isinstance(request, Request) else []
        if (answer := self._trouble(replica, request)) is not None:
            self.lost += [units]
            if isinstance(answer, Lost):
                self._replicas.pop(replica, None)
            return [(replica, answer)]
        if replica not in self._replicas:
            self._replicas[replica] = Replica(replica, "cpu", torch.get_num_threads())
        answer = self._replicas[replica](request)
        if isinstance(request, Request):
            self.computed += [units]
            self.chunks += [request.chunk]
        return [(replica, answer)]

    def stop(self, replica: int | None = None) -> None:
        for one in range(self._n) if replica is None else [replica]:
            self.stopped.append(one)
            self._replicas.pop(one, None)
            self._waiting = [each for each in self._waiting if each[0] != one]
