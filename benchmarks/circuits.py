"""Circuits by size on the default model, for several rankings of heads: ``python -m benchmarks.circuits``.

Two tasks: capitals and indirect objects. Heads, and then heads and MLPs, are ranked on one half of the prompts, and
circuits are measured on the other half, so that no ranking profits from its own noise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import mechheads as mh
from benchmarks.workloads import ring_of_capitals
from mechheads.heads import Nodes

PLACE = Path(__file__).with_name("circuits.json")
N = 64
"""Prompts of each task: half of them to rank, half to measure."""
Ranked = Callable[..., mh.HeadScores]
RANKINGS: dict[str, Ranked] = {
    "patching, denoising": lambda model, pairs, **nodes: mh.activation_patch(model, pairs, **nodes),
    "patching, noising": lambda model, pairs, **nodes: (
        mh.activation_patch(model, pairs, direction="noising", **nodes) * -1
    ),
    "attribution patching": lambda model, pairs, **nodes: mh.patching.attribution_patch(model, pairs, **nodes),
    "attribution, 5 steps": lambda model, pairs, **nodes: mh.patching.attribution_patch(model, pairs, steps=5, **nodes),
    "mean ablation": lambda model, pairs, **nodes: (
        mh.ablate(model, _clean(pairs), intervention="mean", metric="logit_diff", **nodes) * -1
    ),
}
OF_HEADS: dict[str, Ranked] = {
    "direct logit attribution": lambda model, pairs, **nodes: mh.behaviour.logit_attribution(model, pairs),
}


@mh.settings(progress=False)
def main() -> None:
    """Rank, measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE)
    parser.add_argument("--model", help="a name or a path; by default, the default model")
    parser.add_argument("--figures", type=Path, help="a folder for the figures")
    parser.add_argument("--rankings", nargs="+", choices=[*RANKINGS, *OF_HEADS], help="only these")
    given = parser.parse_args()
    model = mh.load(given.model)
    found: dict[str, Any] = {"model": model.name}
    for task, pairs in tasks(model, N).items():
        kinds: dict[str, Nodes] = {task: "heads", f"{task}, heads and MLPs": "all"}
        for name, nodes in kinds.items():
            found[name] = measured(model, pairs, name, nodes, given)
            print(name, json.dumps(found[name], indent=1), flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(
    model: mh.Model, pairs: mh.PromptPairs, task: str, nodes: Nodes, given: argparse.Namespace
) -> dict[str, Any]:
    """The areas of each ranking and of random orders, their differences, and how long each ranking took."""
    seen, held = half(pairs, 0), half(pairs, 1)
    rankings, seconds = {}, {}
    ways = RANKINGS | (OF_HEADS if nodes == "heads" else {})
    for name in [name for name in ways if name in (given.rankings or ways)]:
        start = time.perf_counter()
        rankings[name] = ways[name](model, seen, nodes=nodes)
        seconds[name] = time.perf_counter() - start
    start = time.perf_counter()
    curve = mh.patching.circuit_curve(model, held, rankings, nodes=nodes)
    if given.figures is not None:
        mh.plots.save(curve.plot(title=task), given.figures / f"{task}.svg")
    return results(curve, rankings) | {"seconds to rank": seconds, "seconds of the curves": time.perf_counter() - start}


def tasks(model: mh.Model, n: int) -> dict[str, mh.PromptPairs]:
    """So many pairs of each task."""
    found = {"capitals": ring_of_capitals(model, n), "indirect object": mh.behaviour.indirect_object_pairs(model, n)}
    if few := [task for task, pairs in found.items() if pairs is None]:
        raise SystemExit(f"{model.name} has too few items for the task {few[0]}")
    return {task: pairs for task, pairs in found.items() if pairs is not None}


def results(curve: mh.patching.Curves, rankings: Iterable[str]) -> dict[str, Any]:
    """The areas of each ranking and of random orders, and their differences."""
    names = list(rankings)
    return {
        "pairs": curve.values.shape[1],
        "areas": curve.more["areas"].to_dict("records"),
        "points": curve.table.to_dict("records"),
        "differences": {
            f"{one} - {other}": mh.patching.compare_areas(curve, one, other).to_dict("index")
            for one, other in [*combinations(names, 2), *((name, "random") for name in names)]
        },
    }


def half(pairs: mh.PromptPairs, start: int) -> mh.PromptPairs:
    """Every second pair."""
    answer, wrong = ((side or ())[start::2] for side in (pairs.answer, pairs.wrong))
    return mh.PromptPairs(pairs.clean[start::2], pairs.corrupted[start::2], answer, wrong)


def _clean(pairs: mh.PromptPairs) -> mh.Prompts:
    return mh.Prompts(pairs.clean, answer=pairs.answer, wrong=pairs.wrong)


if __name__ == "__main__":
    main()
