"""Processes that go on at the same time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence


def run_at_once(code: str, each: Sequence[Sequence[object]]) -> None:
    """Run a script in several processes, each with its own arguments, and wait until all have ended well.

    The script prints "ready" on a line when it has imported what it needs, and then reads a line to go on.
    """
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", code, *map(str, own)], stdin=pipe, stdout=pipe, stderr=pipe)
        for own in each
    ]
    for one in started:
        assert one.stdout.readline() == b"ready\n"
    for one in started:
        one.stdin.write(b"go\n")
        one.stdin.flush()
    for one in started:
        said = one.communicate()[1].decode()
        assert one.returncode == 0, said
