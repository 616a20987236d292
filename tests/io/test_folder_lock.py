"""Two processes never work in one folder at once, and one that was killed keeps nobody out."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mechheads.io.write import LOCK, folder_locked

HOLDS = """
import sys
from mechheads.io.write import folder_locked
with folder_locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_at_once(holder: subprocess.Popen, tmp_path: Path):
    said = rf"{re.escape(str(tmp_path))} is in use by another process or thread: two commands cannot"
    for _ in range(2):
        with pytest.raises(ValueError, match=said), folder_locked(tmp_path):
            pass
    holder.communicate(b"")
    with folder_locked(tmp_path):
        assert (tmp_path / LOCK).is_file()
    assert not list(tmp_path.iterdir())


def test_a_killed_process_keeps_nobody_out(holder: subprocess.Popen, tmp_path: Path):
    holder.kill()
    holder.wait()
    assert (tmp_path / LOCK).is_file()
    with folder_locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_one_thread_may_nest_blocks_and_another_is_refused(tmp_path: Path):
    said: list[str] = []

    def other() -> None:
        try:
            with folder_locked(tmp_path):
                said.append("held")
        except ValueError as error:
            said.append(str(error))

    with folder_locked(tmp_path), folder_locked(tmp_path / "." / ""):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "is in use by another process or thread" in said[0]
    other()
    assert said[1] == "held" and not list(tmp_path.iterdir())
