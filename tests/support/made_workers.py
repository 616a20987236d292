"""A stand-in for Ray in this process: its actors compute when they are waited for, and meet with given troubles."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import ray

import mechheads as mh

Trouble = Callable[[int, Any], bool | None]
"""Gets a replica and the request that it is given; whether it ends before it answers."""


class MadeRay:
    """What ``mh.scale.Ray`` uses of Ray."""

    exceptions, cloudpickle = ray.exceptions, ray.cloudpickle

    def __init__(self, **resources: float) -> None:
        self.resources, self.address = resources, ""
        self.ends: Callable[[int], bool | None] = lambda asked: False  # whether an actor ends with what it is asked
        self.started: list[dict[str, Any]] = []
        self.options: list[dict[str, Any]] = []
        self.given: list[tuple[Any, ...]] = []
        self.killed: list[int] = []
        self.last_first = False  # whether the last request is answered first, once all are ready
        self._asked: dict[int, tuple[SimpleNamespace, list[bytes]]] = {}
        self._names = count()

    def is_initialized(self) -> bool:
        return bool(self.address)

    def init(self, address: str, **more: Any) -> None:
        usage = os.environ["RAY_USAGE_STATS_ENABLED"]
        self.started.append({"address": address, "usage": usage, **more})
        os.environ["PYTHONBREAKPOINT"] = "ray"
        self.address = "10.0.0.1:1"
        self.resources |= {"CPU": more.get("num_cpus", self.resources.get("CPU", 4))}

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=self.address)

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": alive} for alive in (True, True, False, True)]

    def put(self, thing: Any) -> bytes:
        return self.cloudpickle.dumps(thing)

    def remote(self, kind: type) -> SimpleNamespace:
        def options(**chosen: Any) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *given: self._actor(kind, chosen, given))

        return SimpleNamespace(options=options)

    def _actor(self, kind: type, chosen: dict[str, Any], given: tuple[Any, ...]) -> SimpleNamespace:
        def start() -> Any:
            with warnings.catch_warnings():
                return kind(*given)

        def ask(*things: Any) -> int:
            self._asked[name := next(self._names)] = (
                actor,
                [each if isinstance(each, bytes) else self.put(each) for each in things],
            )
            return name

        actor = SimpleNamespace(number=len(self.options), start=start, does=start(), retries=chosen["max_task_retries"])
        actor.compute = SimpleNamespace(remote=ask)
        self.options.append(chosen)
        self.given.append(given)
        return actor

    def wait(self, asked: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        assert num_returns <= len(asked)
        getting_ready = [one for one in asked if len(self._asked[one][1]) == 1]
        first = (getting_ready or (asked[::-1] if self.last_first else asked))[0]
        return [first], [one for one in asked if one != first]

    def get(self, asked: int) -> Any:
        actor, sent = self._asked.pop(asked)
        assert actor.number not in self.killed
        for _ in range(1 + actor.retries):
            if not self.ends(asked):
                break
            actor.does = actor.start()
        else:
            raise self.exceptions.ActorDiedError
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return actor.does.compute(*map(pickle.loads, sent))
        except Exception as error:
            told = ("compute", traceback.format_exc(), error, "worker", 1, "10.0.0.1")
            raise self.exceptions.RayTaskError(*told).as_instanceof_cause() from error

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.number)


class MadeWorkers(mh.scale.Ray):
    """Workers of the stand-in, which answer one after the other."""

    def __init__(self, n: int, trouble: Trouble = lambda replica, request: False) -> None:
        super().__init__(replicas=n)
        self._trouble = trouble
        self._ray = self.ray = MadeRay()
        self.ray.ends = self._ends
        self._requests: dict[int, tuple[int, Any]] = {}
        self.unready: set[int] = set()  # replicas that end while they get ready
        self.computed: list[list[Any]] = []
        self.lost: list[list[Any]] = []  # the units of each request with which a worker ended
        self.stopped: list[int] = []

    def ask(self, replica: int, *given: Any) -> Any:
        assert len(given) == 1 or replica not in self._computing(), "one request at a time"
        asked = super().ask(replica, *given)
        self._requests[asked] = replica, given[1] if len(given) > 1 else None
        return asked

    def _computing(self) -> list[int]:
        """The replicas that compute something now."""
        alive = [one for one, (actor, _) in self.ray._asked.items() if actor.number not in self.ray.killed]
        return [replica for replica, request in map(self._requests.__getitem__, alive) if request is not None]

    def stop(self, replica: int | None = None) -> None:
        self.stopped += [one for one in self._computing() if one == replica]
        super().stop(replica)

    def _ends(self, asked: int) -> bool:
        replica, request = self._requests[asked]
        if request is None:
            return replica in self.unready
        units = getattr(request, "units", [request])
        if self._trouble(replica, request):
            self.lost += [units]
            return True
        self.computed += [units]
        return False


def pressing(times: int, at: int) -> tuple[MadeWorkers, list[Any]]:
    """Two workers; Ctrl-C is pressed this many times while the n-th batch is computed."""
    seen: list[Any] = []

    def trouble(replica: int, request: Any) -> bool:
        seen.append(request)
        for _ in range(times if len(seen) == at else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return False

    return MadeWorkers(2, trouble), seen
