"""Circuits of edges by size on the default model: ``python -m benchmarks.edge_circuits``.

Edges are ranked by one gradient and by five, on one half of the prompts. Circuits are measured on the other half, as
in ``benchmarks.circuits``, but on fewer prompts, because each circuit of edges takes seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import mechheads as mh
from benchmarks.circuits import half, results, tasks

PLACE = Path(__file__).with_name("edge_circuits.json")
N = 16
"""Prompts of each task: half of them to rank, half to measure."""
STEPS = {"one gradient": None, "5 steps": 5}


def main() -> None:
    """Rank, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE)
    parser.add_argument("--model", help="a name or a path; by default, the default model")
    given = parser.parse_args()
    model = mh.load(given.model)
    found: dict[str, Any] = {"model": model.name}
    for task, pairs in tasks(model, N).items():
        seen, held = half(pairs, 0), half(pairs, 1)
        ranked = {name: mh.patching.attribute_edges(model, seen, steps=steps) for name, steps in STEPS.items()}
        found[task] = measured(model, held, ranked)
        print(task, json.dumps(found[task], indent=1), flush=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(model: mh.Model, pairs: mh.PromptPairs, ranked: dict[str, mh.patching.EdgeScores]) -> dict[str, Any]:
    """The areas of each ranking and of a random order, and their differences."""
    start = time.perf_counter()
    curve = mh.patching.edge_curve(model, pairs, ranked, draws=1)
    return results(curve, ranked) | {"seconds of the curves": time.perf_counter() - start}


if __name__ == "__main__":
    main()
