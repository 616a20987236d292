"""A stand-in for Ray in this process: its actors compute when they are waited for, and meet with given troubles."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

needs_ray = pytest.mark.needs(find_spec("ray") is not None, "ray")


class RayError(Exception):
    """What Ray raises for an actor that has ended."""


class MadeRay:
    """What ``mh.scale.Ray`` uses of Ray.

    Attributes:
        resources: what the cluster has.
        trouble: gets the bytes of a request; whether the actor ends with it.
        address: of the cluster that this process is connected to, empty for none.
        started: the arguments of each ``init``, with the environment variable for usage statistics.
        options: of each actor, in order; ``given``: the arguments of each actor.
        killed: which actors were killed.
    """

    def __init__(self, resources: dict[str, float], trouble: Callable[[bytes], bool] = lambda request: False) -> None:
        self.resources, self.trouble, self.address = resources, trouble, ""
        self.exceptions = SimpleNamespace(RayError=RayError)
        self.started: list[dict[str, Any]] = []
        self.options: list[dict[str, Any]] = []
        self.given: list[tuple[Any, ...]] = []
        self.killed: list[int] = []
        self._asked: dict[int, tuple[int, Any, bytes]] = {}
        self._names = count()

    def is_initialized(self) -> bool:
        return bool(self.address)

    def init(self, address: str, **more: Any) -> None:
        usage = os.environ["RAY_USAGE_STATS_ENABLED"]
        self.started.append({"address": address, "usage": usage, **more})
        os.environ["PYTHONBREAKPOINT"] = "ray"
        self.address = "10.0.0.1:1" if address in ("local", "auto") else address

    def shutdown(self) -> None:
        self.address = ""

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=self.address)

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, kind: type) -> SimpleNamespace:
        def options(**chosen: Any) -> SimpleNamespace:
            return SimpleNamespace(remote=lambda *given: self._actor(kind, chosen, given))

        return SimpleNamespace(options=options)

    def _actor(self, kind: type, chosen: dict[str, Any], given: tuple[Any, ...]) -> SimpleNamespace:
        number, actor = len(self.options), kind(*given)
        self.options.append(chosen)
        self.given.append(given)

        def ask(request: bytes) -> int:
            self._asked[name := next(self._names)] = number, actor, request
            return name

        return SimpleNamespace(number=number, answer=SimpleNamespace(remote=ask))

    def wait(self, asked: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        assert num_returns <= len(asked)
        return asked[:1], asked[1:]

    def get(self, asked: int) -> bytes:
        number, actor, request = self._asked.pop(asked)
        assert number not in self.killed
        if self.trouble(request):
            raise RayError("The actor died unexpectedly")
        return actor.answer(request)

    def kill(self, actor: Any, no_restart: bool) -> None:
        assert no_restart
        self.killed.append(actor.number)
