"""Analyses whose settings come with their other arguments, for tests that hold both in one mapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mechheads as mh

_SETTINGS = ("budget", "progress", "workers", "store", "seed")


def settled(analysis: Callable[..., Any]) -> Callable[..., Any]:
    """The analysis, which takes the arguments of ``mh.settings`` too."""

    def call(*args: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in _SETTINGS if name in options}
        return mh.settings(**given)(analysis)(*args, **options)

    return call
