"""``Local``: workers in processes of this machine."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, cast

from mechheads.workers.messages import Answer, Lost
from mechheads.workers.pool import Pool
from mechheads.workers.process import receive, send

_LAST_LINES = 20
_START = "import sys; sys.path[:] = {path!r}; from mechheads.workers.process import main; main()"
Arrived = queue.SimpleQueue[tuple[int, "_Process", Answer | Lost]]


class Local(Pool):
    """Workers in processes of this machine, each with its own copy of the model.

    The processes start at the first analysis and stay until ``stop()``, the end of a ``with`` block, or until nothing
    refers to this object any more. Each loads the model from the source that the model of the analysis came from.
    Stored weights are mapped into memory, so processes on CPUs that read the same files share them until they are
    converted. The threads of this process are divided among the workers.

    Args:
        n: how many processes.
        devices: where each process has its model, such as ``["cuda:0", "cuda:1"]``; the processes take them in turn.
            By default the GPUs if the model of the analysis is on one, else that model's device.

    Raises:
        ValueError: if ``n`` is less than 1 or ``devices`` is empty.

    >>> with mh.scale.Local(1) as workers:
    ...     kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4"], progress=False, workers=workers)
    >>> kl["L23H4"]["score"] > 0
    True
    """

    def __init__(self, n: int, devices: Sequence[str] | None = None) -> None:
        super().__init__(n, "n")
        if devices is not None and (isinstance(devices, str) or not devices):
            raise ValueError(f'devices is {devices!r}; give a list, such as ["cuda:0", "cuda:1"], or leave it out')
        self._devices = devices
        self._running: dict[int, _Process] = {}
        self._arrived: Arrived = queue.SimpleQueue()
        weakref.finalize(self, _stop_all, self._running)

    def __repr__(self) -> str:
        return f"Local({self._n})" if self._devices is None else f"Local({self._n}, {list(self._devices)})"

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each worker that runs."""
        return {replica: process.pid for replica, process in list(self._running.items())}

    def submit(self, replica: int, request: Any) -> None:
        """Send a request to a worker, which is started first if it does not run."""
        if replica not in self._running:
            self._running[replica] = _Process(replica, self._device(replica), self._threads, self._arrived)
        self._running[replica].send(request)

    def collect(self, seconds: float) -> list[tuple[int, Answer | Lost]]:
        """The answers that have come; waits for the first one for up to this time. A lost worker is an answer too."""
        found, wait = [], seconds
        while True:
            try:
                replica, process, answer = self._arrived.get(timeout=wait) if wait else self._arrived.get_nowait()
            except queue.Empty:
                return found
            if self._running.get(replica) is process:
                if isinstance(answer, Lost):
                    del self._running[replica]
                found.append((replica, answer))
                wait = 0

    def stop(self, replica: int | None = None) -> None:
        """Stop one worker at once, whatever it does, or all of them."""
        for one in list(self._running) if replica is None else [replica]:
            if (process := self._running.pop(one, None)) is not None:
                process.kill()

    def _device(self, replica: int) -> str:
        """The device of a worker, empty for the kind that the driver's model is on."""
        return self._devices[replica % len(self._devices)] if self._devices else ""


class _Process:
    """One process, and the thread that reads its answers."""

    def __init__(self, replica: int, device: str, threads: int, arrived: Arrived) -> None:
        with tempfile.TemporaryFile() as log:
            self._log = os.fdopen(os.dup(log.fileno()), "rb")
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path), str(replica), device, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                process_group=0 if os.name == "posix" else None,  # a terminal sends Ctrl-C to its own group only
            )
        self.pid = self._process.pid
        threading.Thread(target=self._read, args=(replica, arrived), daemon=True).start()

    def send(self, request: Any) -> None:
        """Send a request; if the process has ended, its loss is an answer that is on its way."""
        with suppress(OSError):
            send(_pipe(self._process.stdin), pickle.dumps(request))

    def kill(self) -> None:
        """End the process at once and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            _pipe(self._process.stdin).close()

    def _read(self, replica: int, arrived: Arrived) -> None:
        while (data := receive(_pipe(self._process.stdout))) is not None:
            arrived.put((replica, self, pickle.loads(data)))
        arrived.put((replica, self, Lost(self._end())))

    def _end(self) -> str:
        """How the process ended, with its last lines."""
        code = self._process.wait()
        _pipe(self._process.stdout).close()
        how = f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        with self._log as log:
            log.seek(0)
            last = log.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([how, *last])


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    return cast(IO[bytes], pipe)


def _stop_all(running: dict[int, _Process]) -> None:
    for process in list(running.values()):
        process.kill()
    running.clear()
