"""What another thread gets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_a_thread(run: Callable[[], Any]) -> Any:
    """What a function gives in another thread, or the error that it raises there."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(run())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    return found[0]
