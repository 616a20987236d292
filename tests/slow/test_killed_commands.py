"""A command that is killed in the middle of a part goes on from the finished units, and ends with the same bits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import mechheads as mh

COMMAND = """
import json, os, signal, sys
from mechheads.cli import main
from mechheads.ledger.ledger import Ledger

log, kill, end, arguments = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
commit, seen = Ledger.commit, 0


def counted(ledger, units, **more):
    global seen
    kept = commit(ledger, units, **more)
    metadata = str(ledger.metadata.get("analysis", ledger.metadata.get("intervention")))
    with open(log, "a") as file:
        file.writelines(f"{metadata} {ledger.metadata.get('intervention')} {name}\\n" for name in units)
    seen += kill in metadata
    if seen == end:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept


Ledger.commit = counted
main(arguments)
"""
PAIRS = """clean,corrupted,answer,wrong
 The capital of France is, The capital of Italy is, Paris, Rome
 The capital of Spain is, The capital of Germany is, Madrid, Berlin
"""


@pytest.fixture
def asked(tiny: Callable[[str], Path], tmp_path: Path) -> list[str]:
    (tmp_path / "pairs.csv").write_text(PAIRS)
    (tmp_path / "requests.csv").write_text("asked\nthe store\none two\na book\nthe big cat\n")
    words = ["atlas", "--model", str(tiny("llama")), "--only", "patching,safety"]
    return [*words, "--pairs", str(tmp_path / "pairs.csv"), "--requests", str(tmp_path / "requests.csv")]


def run(folder: Path, kill: str, end: int, arguments: Sequence[str]) -> tuple[int, str]:
    log = folder.with_suffix(".log")
    given = [log, kill, str(end), json.dumps([*arguments, "--out", str(folder)])]
    done = subprocess.run([sys.executable, "-c", COMMAND, *given], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_killed_command_goes_on_and_ends_with_the_same_bits(asked: list[str], tmp_path: Path):
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    assert run(whole, "nothing", 1, asked)[0] == 0
    for kill in ("Patch", "ships"):
        code, said = run(folder, kill, 1, asked)
        assert code == -signal.SIGKILL, said
    (ledger,) = folder.glob("*.ledger")
    code, said = run(folder, "nothing", 1, asked)
    assert code == 0, said
    units = folder.with_suffix(".log").read_text().splitlines()
    assert len(units) == len(set(units)) and sorted(units) == sorted(whole.with_suffix(".log").read_text().splitlines())
    assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}
    assert not ledger.exists() and not list(folder.glob(".*"))
    for path in whole.glob("*.nc"):
        ours, theirs = (mh.HeadScores.load(at / path.name) for at in (folder, whole))
        assert ours.dataset.identical(theirs.dataset), path.name
