"""One ledger and several processes: two that share a sweep, and one that is killed again and again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from support.twins import run_at_once

PLACES = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]

TWINS = """
import sys
import mechheads as mh
from mechheads.limits import Limits
model = mh.load(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
limits = Limits(tokens=int(sys.argv[3]), logit_rows=1)
found = mh.ablate(model, PLACES, intervention="zero", positions="each", budget=limits, store=sys.argv[2])
found.save(sys.argv[4])
"""


def test_two_processes_share_one_sweep_at_the_same_time(tiny, llama: mh.Model, tmp_path: Path):
    """They are allowed batches of other sizes; both end with the numbers of the ledger, and nothing is there twice."""
    code, store = f"PLACES = {PLACES}\n{TWINS}", tmp_path / "store"
    outs = [tmp_path / "1.nc", tmp_path / "2.nc"]
    run_at_once(code, [(tiny("llama"), store, tokens, out) for tokens, out in zip((1, 60), outs, strict=True)])
    one, two = map(mh.HeadScores.load, outs)
    stored = mh.ablate(llama, PLACES, intervention="zero", positions="each", store=store)
    assert one.scores.values.tobytes() == two.scores.values.tobytes() == stored.scores.values.tobytes()
    np.testing.assert_allclose(
        one.scores, mh.ablate(llama, PLACES, intervention="zero", positions="each").scores, atol=1e-5
    )
    (sweep,) = Ledger.list(store)
    assert sweep["units"] == one.scores.values.size


KILLED_OFTEN = """
import json, os, signal, sys, time
import mechheads as mh
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits

folder, model, moments = sys.argv[1], mh.load(sys.argv[2]), json.loads(sys.argv[3])
log = os.open(f"{folder}/log", os.O_RDWR | os.O_APPEND | os.O_CREAT)


def note(what, names):
    os.write(log, (",".join([what, *names]) + "\\n").encode())


def lines():
    with open(f"{folder}/log") as file:
        return file.read().count("\\n")


def finding(self):
    note("found", found := find(self))
    return found


def committing(self, units):
    kept = commit(self, units)
    note("committed", units)
    return kept


def half(z, context):
    time.sleep(0.03)
    return z * 0.5


def sweep():
    given = dict(intervention=half, positions="each", budget=Limits(tokens=1, logit_rows=1))
    return mh.sweep(model, PLACES, store=f"{folder}/ledger", **given)


find, commit = Ledger.finished, Ledger.commit
Ledger.finished, Ledger.commit = finding, committing
for wanted, seconds in moments:
    wanted += lines()
    if not (driver := os.fork()):
        sweep()
        signal.pause()
    while lines() < wanted:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(driver, signal.SIGKILL)
    _, status = os.waitpid(driver, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
sweep().save(f"{folder}/result.nc")
"""


@pytest.mark.release
def test_killed_at_10_random_moments_it_goes_on_from_its_ledger_and_computes_nothing_twice(
    tiny, llama: mh.Model, tmp_path: Path
):
    draw = random.Random(2)
    moments = [(max(0, draw.randrange(-6, 18)), draw.uniform(0, 0.1)) for _ in range(10)]  # lines of the log, seconds
    script = KILLED_OFTEN.replace("PLACES", repr(PLACES))
    subprocess.run([sys.executable, "-c", script, tmp_path, tiny("llama"), json.dumps(moments)], check=True)

    def half(z, context):
        return z * 0.5

    limits = Limits(tokens=1, logit_rows=1)
    alone = mh.sweep(llama, PLACES, intervention=half, positions="each", budget=limits)
    assert mh.HeadScores.load(tmp_path / "result.nc").values.values.tobytes() == alone.values.values.tobytes()
    safe: set[str] = set()
    found: list[int] = []
    for what, *names in (line.split(",") for line in (tmp_path / "log").read_text().splitlines()):
        if what == "found":
            assert safe <= set(names), "committed, and gone after the process was killed"
            found.append(len(names))
        else:
            assert not safe.intersection(names), "committed twice"
        safe.update(names)
    assert len(safe) == alone.values.notnull().sum()
    assert len(set(found)) >= 5, "killed before anything was done"
    assert found[-1] < len(safe), "never killed on its way"
