"""Progress bars that cannot stay locked after Ctrl-C.

tqdm acquires and releases its lock in Python code, so a refresh that is interrupted may never release it, and the next
bar of another thread would wait forever.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from tqdm.std import tqdm

from mechheads.limits import current


class Bar(tqdm):
    """A tqdm bar with its own lock, held in a ``with`` block, and without tqdm's monitor thread; the settings hide it.

    It is text in notebooks too: a saved widget would say 0% for ever.

    It does not go by the wall clock: after a jump back, tqdm would not redraw a bar until the clock is there again.
    """

    monitor_interval = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not current().progress:
            kwargs["disable"] = True
        super().__init__(*args, **{"miniters": 1} | kwargs)
        self._time = time.monotonic
        self.start_t = self.last_print_t = self._time()

    def refresh(self, nolock: bool = False, lock_args: Any = None) -> None:
        """Redraw the bar."""
        with self.get_lock():
            super().refresh(nolock=True)

    def clear(self, nolock: bool = False) -> None:
        """Remove the bar from the screen."""
        with self.get_lock():
            super().clear(nolock=True)


Bar.set_lock(threading.RLock())
