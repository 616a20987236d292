"""``Ray``: workers as actors of Ray, on this machine or on a cluster, and what they send each other."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

import torch

from mechheads.limits import Workers, check_ray, settings
from mechheads.messages.arguments import check_at_least
from mechheads.messages.notices import warn
from mechheads.model.load import load_again
from mechheads.model.model import Model
from mechheads.model.sources import Source

RETRIES = 2
"""How often Ray repeats a request that ended its worker."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs: source and kind of device of the model, a pickled recipe of ``Ready``, and ``sys.path``."""

    key: str
    source: Source
    device: str
    recipe: bytes
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))


@dataclass(frozen=True)
class Lost:
    """A request ended its worker each time that Ray repeated it; ``why`` says how."""

    why: str


Ready = Callable[[Any], Any]
"""Answers requests on a worker, where everything that it needs is cached."""


class Replica:
    """One worker, with one model. It writes nothing: the driver does."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")  # the driver has prepared the same work and has warned
        self._model: Model | None = None
        self._ready: tuple[str, Ready] | None = None

    def compute(self, setup: Setup, request: Any = None) -> Any:
        """Answer a request, once the model is loaded and all that the work needs is cached; None only gets ready."""
        sys.path += [folder for folder in setup.path if folder not in sys.path]
        with settings(progress=False):
            if self._model is None:
                self._model = load_again(setup.source, setup.device)
            if self._ready is None or self._ready[0] != setup.key:
                self._ready = None
                self._ready = setup.key, pickle.loads(setup.recipe)(self._model)
            return None if request is None else self._ready[1](request)


_joined: list[str | None] = []
"""The address by which this process joined its cluster, which Ray itself knows by another name."""


class Ray:
    """Workers as actors of Ray, on this machine or on a cluster, each with its own copy of the model.

    The workers start at the first analysis and stay until ``stop()``, the end of a ``with`` block, an analysis of
    another model, or until nothing refers to this object any more. Each loads the model from the source that the model
    of the analysis came from. So every machine needs the same files, mechheads, and the same versions of libraries; a
    worker whose model gives other log-probabilities is refused. A worker has as many threads as this process has,
    divided by the number of workers. For a model on a GPU it reserves one GPU, and on a cluster a CPU too.

    Args:
        address: the cluster, such as ``"10.0.0.5:6379"`` or ``"ray://10.0.0.5:10001"``, or ``"auto"`` for the one that
            runs on this machine. By default the one that this process is connected to; if there is none, one of this
            machine alone, without a dashboard and usage statistics, which ends with this process.
        replicas: how many workers. By default one for each GPU of the cluster, or for each machine if it has none.

    Raises:
        ImportError: if ray is not installed.
        ValueError: if ``replicas`` is less than 1.

    References:
        Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications".

    >>> with mh.scale.Ray(replicas=1) as workers:  # doctest: +SKIP
    ...     kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4"], progress=False, workers=workers)
    """

    def __init__(self, address: str | None = None, replicas: int | None = None) -> None:
        if replicas is not None:
            check_at_least(1, replicas=replicas)
        self._ray = library()
        self._address, self._n = address, replicas
        self._actors: dict[int, Any] = {}
        self._model: tuple[Any, str] | None = None
        weakref.finalize(self, _kill, self._ray, self._actors)

    def __repr__(self) -> str:
        return f"Ray({self._address!r}, replicas={self._n})"

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def replicas(self) -> int:
        """The number of workers; by default, one for each GPU of the cluster, or for each machine if it has none."""
        if self._n is None:
            self._connect()
            machines = sum(node["Alive"] for node in self._ray.nodes())
            self._n = int(self._ray.cluster_resources().get("GPU", 0)) or machines
        return self._n

    def prepare(self, setup: Setup, most: int) -> tuple[Any, dict[Any, int]]:
        """The setup in Ray's store, and the workers that get ready, at most ``most``, by their futures."""
        self._connect()
        if self._model != (setup.source, setup.device):
            self.stop()
            self._model = setup.source, setup.device
        shared = self._ray.put(setup)
        return shared, {self.ask(replica, shared): replica for replica in range(min(most, self.replicas))}

    def ask(self, replica: int, *arguments: Any) -> Any:
        """Send a request to a worker, which is started if it does not run; returns the future."""
        if replica not in self._actors:
            self._actors[replica] = self._start()
        return self._actors[replica].compute.remote(*arguments)

    def first_of(self, futures: Iterable[Any], seconds: float) -> list[Any]:
        """The first request that is answered; none if this takes longer."""
        return self._ray.wait(list(futures), num_returns=1, timeout=seconds)[0]

    def answer(self, future: Any, replica: int) -> Any:
        """A worker's answer; ``Lost`` if it ended each time. Its error is raised here, with its traceback in a note."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(future)
        except errors.RayTaskError as error:
            error.cause.add_note(f"On worker {replica}:\n{error}")
            raise error.cause from None
        except errors.UnserializableException:
            raise
        except errors.RayError as error:
            self.stop(replica)
            return Lost(f"the last time, Ray said: {error}")

    def stop(self, replica: int | None = None) -> None:
        """Stop one worker at once, whatever it does, or all of them."""
        _kill(self._ray, {one: self._actors.pop(one) for one in list(self._actors) if replica in (None, one)})

    def _connect(self) -> None:
        """Connect to the cluster or start one, unless this process is connected."""
        if not self._ray.is_initialized():
            self._actors.clear()
            own = {"num_cpus": 0, "include_dashboard": False} if self._address is None else {}
            with _undisturbed():
                self._ray.init(self._address or "local", log_to_driver=False, logging_level="warning", **own)
            _joined[:] = [self._address]
        elif self._address not in (None, "auto", *_joined):
            here = self._ray.get_runtime_context().gcs_address
            if self._address != here:
                raise ValueError(
                    f"address is {self._address!r}, but this process is connected to the cluster at {here!r}; leave "
                    "address out, or call ray.shutdown() first"
                )

    def _start(self) -> Any:
        """Start a worker. If it ends while it computes, Ray starts it again and repeats the request."""
        there, gpus = self._ray.cluster_resources(), int(self._model is not None and self._model[1] == "cuda")
        cpus = min(1, there.get("CPU", 0))  # a cluster that was started here has none to reserve
        if gpus > there.get("GPU", 0):
            warn("the Ray cluster has no GPU now; workers wait until it has one, because the model is on a GPU here")
        kind = self._ray.remote(Replica).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES
        )
        return kind.remote(max(1, torch.get_num_threads() // self.replicas))


def pool_of(workers: Workers) -> Ray:
    """The workers that a ``workers`` argument means: the same ones in every call, until the argument changes."""
    return _shared(workers) if isinstance(workers, int | str) else cast(Ray, workers)


@lru_cache(maxsize=1)
def _shared(workers: int | str) -> Ray:
    return Ray(workers) if isinstance(workers, str) else Ray(replicas=workers)


def library() -> Any:
    """The module ``ray``, which is optional."""
    check_ray()
    return importlib.import_module("ray")


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


def _kill(ray: Any, actors: dict[int, Any]) -> None:
    if ray.is_initialized():
        for actor in actors.values():
            ray.kill(actor, no_restart=True)
    actors.clear()
