"""Which score finds the heads that a model was taught to refuse with: ``python -m benchmarks.refusal``.

There are two deltas, each confined to six heads of the default model: the shipped one, and one with other heads, which
is trained here. For each delta, the benchmark measures how much less likely the refusal becomes when one head's delta
is removed, the rank of every head of the delta by every score, and whether the model complies, and still works, when
all six heads are ablated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

import numpy as np

import mechheads as mh
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta, shipped
from mechheads.model.sources import REFUSING_MODEL
from mechheads.safety import load_requests
from mechheads.safety.answers.teaching import (
    OTHER_HEADS,
    SHIPPED,
    refusal_loss,
    requests_to_teach,
    taught_model,
    teach_refusal,
)
from mechheads.safety.heads.contribution import By

PLACE = Path(__file__).with_name("refusal.json")


def main() -> None:
    """Rank the known heads of both deltas by every score, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE)
    parser.add_argument("--delta", type=Path, help="a file with the second delta, instead of training it")
    parser.add_argument("--only", choices=("shipped", "second"), help="measure one delta, keep the other's results")
    given = parser.parse_args()
    path = shipped(REFUSING_MODEL)
    if path is None:
        raise SystemExit("the shipped delta is missing: python -m mechheads.safety.answers.teaching makes it")
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in (given.only,) if given.only else ("shipped", "second"):
        stored = path if name == "shipped" else given.delta
        found[name] = study(Delta.load(stored) if stored else taught())
        print(name, json.dumps(found[name], indent=1), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def taught() -> Delta:
    """The second delta, taught with the lessons of the shipped one."""
    return teach_refusal(OTHER_HEADS, *(requests_to_teach(kind, SHIPPED) for kind in ("harmful", "harmless")), seed=1)


def study(delta: Delta) -> dict[str, Any]:
    """All results for one delta, on requests that it was not trained on."""
    model = taught_model(delta)
    harmful, harmless = ([r.text for r in load_requests(name, "test")] for name in ("harmful", "harmless"))
    intact = refusal_loss(model, harmful)
    cost = {
        str(head): float((refusal_loss(taught_model(delta.without([head])), harmful) - intact).mean())
        for head in delta.heads
    }
    scores = {}
    for kind, ships in mh.safety.compare_ablations(model, harmful, template="chat", progress=False).items():
        scores[f"Ships, {kind}"] = ships.dataset["ships"].values
        scores[f"Generalized Ships, {kind}"] = ships.dataset["generalized_ships"].values
    for by in get_args(By)[:3]:
        contribution = mh.safety.refusal_contribution(model, harmful, harmless, by=by, progress=False)
        scores[f"Refusal Contribution, {by}"] = contribution.scores.values
        scores[f"Refusal Contribution, {by}, direct"] = contribution.dataset["direct"].values
    scores["refusal direction"] = mh.safety.refusal_direction(model, harmful, harmless, progress=False).scores.values
    known = [HeadId.parse(head) for head, lost in cost.items() if lost > 0]
    ranks = {name: [rank_of(values, head) for head in known] for name, values in scores.items()}
    test = mh.safety.refusal_test(model, delta.heads, harmful, harmless, max_new_tokens=32, progress=False)
    return {
        "log-probability lost with a head's delta, nats": cost,
        "known": [str(head) for head in known],
        "ranks": ranks,
        "found": {name: sum(rank <= len(known) for rank in of) / len(known) for name, of in ranks.items()},
        "refusals": test.table.to_dict("records"),
        "verdict": test.verdict,
    }


def rank_of(values: np.ndarray, head: HeadId) -> int:
    """The rank of a head's score; 1 is the largest."""
    return int((values > values[head.layer, head.head]).sum()) + 1


if __name__ == "__main__":
    main()
