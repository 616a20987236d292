"""One ledger and two processes that share a sweep."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import mechheads as mh
from mechheads.ledger.ledger import Ledger
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
