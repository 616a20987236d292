"""Ctrl-C, or an error, at a chosen call."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any


def stopped_at(
    call: int, function: Callable[..., Any], error: type[BaseException] = KeyboardInterrupt
) -> Callable[..., Any]:
    """The function, with Ctrl-C in place of its n-th call; n counts from 1."""
    calls = count(1)

    @wraps(function)
    def stopped(*args: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise error
        return function(*args, **options)

    return stopped
