"""Two processes never work in one folder at once, and one that was killed keeps nobody out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mechheads.files import folder_lock
from mechheads.files.folder_lock import LOCK, folder_locked

HOLDS = """
import sys
from mechheads.files.folder_lock import folder_locked
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


def test_a_second_process_is_refused_at_once_and_told_who_is_there(holder: subprocess.Popen, tmp_path: Path):
    said = rf"{re.escape(str(tmp_path))} is in use by process {holder.pid} on \S+, since .* UTC: two commands cannot"
    for _ in range(2):
        with pytest.raises(ValueError, match=said), folder_locked(tmp_path):
            pass
    holder.communicate(b"")
    with folder_locked(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / LOCK).read_text()
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
    assert "is in use by another thread of this process" in said[0]
    other()
    assert said[1] == "held" and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(folder_lock.tempfile, "TemporaryFile", read_only)
    with pytest.raises(ValueError, match=r"cannot be written to \(Read-only file system\)"), folder_locked(tmp_path):
        pass
    monkeypatch.undo()
    with folder_locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
