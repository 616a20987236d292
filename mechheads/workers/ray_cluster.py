"""``Ray``: workers as actors of a Ray cluster."""

from __future__ import annotations

import importlib
import math
import os
import pickle
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mechheads.messages.warn import warn
from mechheads.workers.messages import Answer, Lost, Setup
from mechheads.workers.pool import Pool
from mechheads.workers.process import served
from mechheads.workers.replica import Replica


class Ray(Pool):
    """Workers on the machines of a Ray cluster, each with its own copy of the model.

    The workers start at the first analysis and stay until ``stop()``, the end of a ``with`` block, or until nothing
    refers to this object any more. Each reserves one CPU and, for a model on a GPU, one GPU, and loads the model from
    the source that the model of the analysis came from. So every machine needs the same files, mechheads, and the
    same versions of libraries; workers check this. A worker has as many threads as this process has, divided by the
    number of workers. Ray restarts and repeats nothing by itself, and sends no usage statistics from a cluster that
    is started here.

    Args:
        address: the cluster, such as ``"10.0.0.5:6379"``, or ``"auto"`` for the one that runs on this machine. By
            default the one that this process is connected to; if there is none, a cluster of this machine alone,
            without a dashboard, that ends with the workers.
        replicas: how many workers.
        gpus_per_replica: how many GPUs each worker reserves, such as 0.5 if two workers share one. By default 1 if the
            model of the analysis is on a GPU, else 0.

    Raises:
        ImportError: if ray is not installed.
        ValueError: if ``replicas`` is less than 1, or ``gpus_per_replica`` is negative, or above 1 and not whole.

    References:
        Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications".

    >>> with mh.scale.Ray(replicas=1) as workers:  # doctest: +SKIP
    ...     kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4"], progress=False, workers=workers)
    """

    def __init__(self, address: str | None = None, replicas: int = 1, gpus_per_replica: float | None = None) -> None:
        super().__init__(replicas, "replicas")
        if (gpus := gpus_per_replica) is not None and not (0 <= gpus <= 1 or (1 < gpus < math.inf and gpus % 1 == 0)):
            raise ValueError(
                f"gpus_per_replica is {gpus}; give 0, a part of a GPU such as 0.5, a whole number, or leave it out"
            )
        self._address, self._gpus_per_replica = address, gpus_per_replica
        self._ray = _library()
        self._running: dict[int, _Actor] = {}
        self._asked: dict[Any, int] = {}
        self._started_here: list[bool] = []
        weakref.finalize(self, _stop_all, self._ray, self._running, self._started_here)

    def __repr__(self) -> str:
        return f"Ray({self._address!r}, replicas={self._n}, gpus_per_replica={self._gpus_per_replica})"

    def submit(self, replica: int, request: Any) -> None:
        """Send a request to a worker, which is started first if it does not run."""
        if isinstance(request, Setup) or replica not in self._running:
            self._start(replica, self._gpus(request))
        actor = self._running[replica]
        self._asked[actor.handle.answer.remote(pickle.dumps(request))] = replica

    def collect(self, seconds: float) -> list[tuple[int, Answer | Lost]]:
        """The answers that have come; waits for the first one for up to this time. A lost worker is an answer too."""
        if not self._asked:
            return []
        some, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        if some:
            some, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        return [(self._asked[one], self._answer(one)) for one in some]

    def stop(self, replica: int | None = None) -> None:
        """Stop one worker at once, whatever it does, or all of them, and the cluster if it was started here."""
        if replica is None:
            self._asked.clear()
            _stop_all(self._ray, self._running, self._started_here)
        elif (actor := self._running.pop(replica, None)) is not None:
            self._asked = {one: of for one, of in self._asked.items() if of != replica}
            self._ray.kill(actor.handle, no_restart=True)

    def _answer(self, asked: Any) -> Answer | Lost:
        try:
            answer = pickle.loads(self._ray.get(asked))
        except self._ray.exceptions.RayError as error:
            self.stop(self._asked[asked])
            return Lost(f"Ray said: {error}")
        del self._asked[asked]
        return answer

    def _start(self, replica: int, gpus: float) -> None:
        """Start a worker if none with so many GPUs runs."""
        if (actor := self._running.get(replica)) is not None:
            if actor.gpus == gpus:
                return
            self.stop(replica)
        if not self._running:
            self._connect()
            self._check_room(gpus)
        kind = self._ray.remote(_Served).options(num_cpus=1, num_gpus=gpus, max_restarts=0, max_task_retries=0)
        self._running[replica] = _Actor(kind.remote(replica, "", self._threads), gpus)

    def _gpus(self, request: Any) -> float:
        """How many GPUs the worker for a request has.

        Raises:
            ValueError: if it has none and the model is on one.
        """
        needed = isinstance(request, Setup) and request.device == "cuda"
        if self._gpus_per_replica is None:
            return int(needed)
        if needed and self._gpus_per_replica == 0:
            raise ValueError("gpus_per_replica is 0, but the model of this analysis is on a GPU; give 1, or omit it")
        return self._gpus_per_replica

    def _connect(self) -> None:
        """Connect to the cluster, or start one.

        Raises:
            ValueError: if this process is connected to another one.
        """
        if self._ray.is_initialized():
            here = self._ray.get_runtime_context().gcs_address
            if self._address not in (None, "auto", here):
                raise ValueError(
                    f"address is {self._address!r}, but this process is connected to the cluster at {here!r}; leave "
                    "address out, or call ray.shutdown() first"
                )
            return
        own = {"num_cpus": self._n, "include_dashboard": False} if self._address is None else {}
        with _undisturbed():
            self._ray.init(self._address or "local", log_to_driver=False, logging_level="warning", **own)
        if own:
            self._started_here.append(True)

    def _check_room(self, gpus: float) -> None:
        """Warn if not all workers can run at the same time.

        Raises:
            ValueError: if they never can, because the cluster is this machine alone.
        """
        there = self._ray.cluster_resources()
        for name, each in {"CPU": 1, "GPU": gpus}.items():
            if there.get(name, 0) < each * self._n:
                what = (
                    f"the Ray cluster has {there.get(name, 0):g} {name}s, which is too few for {self._n} workers with "
                    f"{each:g} each"
                )
                if self._started_here:
                    raise ValueError(f"{what}; give fewer replicas, or another gpus_per_replica")
                warn(f"{what}; the others start when it has more")


@dataclass(frozen=True)
class _Actor:
    """A worker that runs, and the number of its GPUs."""

    handle: Any
    gpus: float


class _Served:
    """The worker as an actor; what it gets and gives are the bytes that a process reads and writes."""

    def __init__(self, number: int, device: str, threads: int) -> None:
        self._replica = Replica(number, device, threads)

    def answer(self, request: bytes) -> bytes:
        """The answer to a request."""
        return served(self._replica, request)


def _library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError('mh.scale.Ray needs ray: pip install "mechheads[ray]"; or take mh.scale.Local') from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Start Ray without usage statistics, and undo what it changes in this process: debugger and SIGTERM."""
    before = {name: os.environ.get(name) for name in ("RAY_USAGE_STATS_ENABLED", "PYTHONBREAKPOINT")}
    handler = signal.getsignal(signal.SIGTERM)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _stop_all(ray: Any, running: dict[int, _Actor], started_here: list[bool]) -> None:
    if ray.is_initialized():
        for actor in running.values():
            ray.kill(actor.handle, no_restart=True)
        if started_here:
            ray.shutdown()
    running.clear()
    started_here.clear()
