"""Progress bars that cannot stay locked after Ctrl-C.

tqdm acquires and releases its lock in Python code, so a refresh that is interrupted may never release it, and the next
bar of another thread would wait forever.
"""

from __future__ import annotations

import html
import importlib
import sys
import threading
import time
from typing import Any

from tqdm.std import tqdm

from mechheads.limits import current


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class _Cell:
    """The output of a notebook cell in which a bar redraws its line."""

    _handle: Any = None
    _shown = ""

    def write(self, text: str) -> None:
        _, drawn, line = text.rpartition("\r")
        shown = f"<pre>{html.escape(line.rstrip())}</pre>" if line.strip() else ""
        if not drawn or shown == self._shown:
            return
        self._shown, bundle = shown, {"text/html": shown}
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def flush(self) -> None:
        pass


class Bar(tqdm):
    """A tqdm bar with its own lock, held in a ``with`` block, and no monitor thread; the settings hide it."""

    monitor_interval = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not current().progress:
            kwargs["disable"] = True
        elif in_notebook():  # a widget that is saved would say 0% for ever, and text on stderr would leave a strip
            kwargs |= {"file": _Cell(), "leave": False}
        super().__init__(*args, **{"miniters": 1} | kwargs)
        self._time = time.monotonic  # after a jump of the clock, a bar would not be redrawn until it is there again
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
