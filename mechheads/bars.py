"""Progress bars that Ctrl-C cannot leave locked.

tqdm's own lock is taken and given back in steps of Python, and not given back where a refresh is interrupted: the next
bar of another thread would wait for it forever.
"""

from __future__ import annotations

import threading
from typing import Any

from tqdm.auto import tqdm


class Bar(tqdm):
    """A tqdm bar with a lock of its own, which the interpreter gives back, and no thread that watches it."""

    monitor_interval = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"miniters": 1} | kwargs)

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """Draw the bar anew."""
        with self.get_lock():
            super().refresh(nolock=True)

    def clear(self, nolock: bool = False) -> None:
        """Take the bar off the screen."""
        with self.get_lock():
            super().clear(nolock=True)


Bar.set_lock(threading.RLock())
