"""The main function of a worker process: it reads requests from its standard input and writes answers to its output."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
from typing import IO, Any

_HEADER = 8


def send(pipe: IO[bytes], data: bytes) -> None:
    """Write one message."""
    pipe.write(len(data).to_bytes(_HEADER, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Read one message; None at the end of the pipe."""
    if len(header := pipe.read(_HEADER)) < _HEADER:
        return None
    size = int.from_bytes(header, "little")
    return data if len(data := pipe.read(size)) == size else None


def main() -> None:
    """Serve requests until the driver closes the pipe, or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which decides what becomes of units
    into, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(into, requests), daemon=True).start()
    replica = _replica(*sys.argv[1:])
    while True:
        send(out, served(replica, requests.get()))


def _read(pipe: IO[bytes], requests: queue.SimpleQueue[bytes]) -> None:
    """Read requests in a thread, so that the process notices the end of the driver while it computes."""
    while (data := receive(pipe)) is not None:
        requests.put(data)
    os._exit(0)


def _replica(number: str, device: str, threads: str) -> Any:
    from mechheads.workers.replica import Replica

    return Replica(int(number), device, int(threads))


def served(replica: Any, request: bytes) -> bytes:
    """A worker's answer to a request; an error that cannot be sent as it is becomes a RuntimeError with its text."""
    from mechheads.workers.messages import Answer

    answer = replica(pickle.loads(request))
    try:
        data = pickle.dumps(answer)
        pickle.loads(data)
    except Exception:  # an exception's class may do anything when it is pickled
        kind = type(answer.error).__name__
        data = pickle.dumps(Answer(error=RuntimeError(f"{kind}: {answer.error}"), trace=answer.trace))
    return data
