"""Published heads of indirect objects against what is found: ``python -m benchmarks.known_heads --model gpt2``.

``known_heads.csv`` holds heads that a paper lists for a model. For each role of the model, the report says: which
published heads have the role here, the rank of each by the effect of its path, the area under the ROC curve (the
probability that a published head is above another head), and its p value (one-sided Mann-Whitney). Prompts are this
package's own, so agreement is a replication, not a repetition.

``--list`` prints the models and roles. ``--model FOLDER --as gpt2`` takes weights from a folder. ``--random`` runs
everything on random weights in GPT-2's shape: it shows that the code runs, and nothing should be found.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

import mechheads as mh
from benchmarks.workloads import random_model
from mechheads.behaviour.indirect_objects import IndirectObjectRoles
from mechheads.heads import HeadId
from mechheads.model.sources.source import ModelSourceError

TABLE = Path(__file__).with_suffix(".csv")
STEPS = {
    "name mover": ("final", -1),
    "negative name mover": ("final", 1),
    "S-inhibition": ("queries", -1),
    "induction": ("values", -1),
    "duplicate token": ("values", -1),
    "previous token": ("keys", -1),
    "backup name mover": ("backup", 1),
}
"""For each role, the step that it comes from and the sign of its effects."""
Judged = tuple[np.ndarray, set[HeadId]]
"""The score of every head, and the heads that have the role."""


@mh.settings(progress=False)
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.known_heads",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="gpt2", help="a name, a folder or a GGUF file, as for mh.load")
    parser.add_argument("--as", dest="known_as", help="the model in known_heads.csv; default: the name of --model")
    parser.add_argument("--random", action="store_true", help="random weights in GPT-2's shape")
    parser.add_argument("--quick", action="store_true", help="few prompts, to see that it works")
    parser.add_argument("--list", action="store_true", help="print what is known, and stop")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    known = published()
    if args.list:
        for (model, role), heads in sorted(known.items()):
            print(f"{model:20} {role:22} {' '.join(map(str, heads))}")
        return
    name = args.known_as or ("gpt2" if args.random else Path(args.model).name)
    wanted = {role: heads for (model, role), heads in known.items() if model == name}
    if not wanted:
        parser.error(f"nothing is known of {name!r}; --as takes one of {', '.join(sorted({m for m, _ in known}))}")
    with tempfile.TemporaryDirectory(prefix="mechheads") as folder:
        try:
            model = mh.load(random_model("cpu", Path(folder)).folder if args.random else args.model)
        except ModelSourceError as error:
            sys.exit(f"{error}\n\n{needed(name, wanted)}")
        weights = f"random, in the shape of {name}" if args.random else args.model
        found = {"model": name, "weights": weights, "quick": args.quick, "roles": compare(model, wanted, args.quick)}
    print(json.dumps(found, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def needed(name: str, wanted: dict[str, list[HeadId]]) -> str:
    """What it takes to run the comparison without the weights at hand."""
    return (
        f"Nothing was compared. To compare {', '.join(wanted)} of {name!r}, download its weights on a machine with a "
        f"network (`hf download {name}` for a model of that name), and give the folder: --model FOLDER --as {name}. "
        "GPT-2 small is 0.5 GB. --random runs the same code on random weights."
    )


def published() -> dict[tuple[str, str], list[HeadId]]:
    """The published heads of each model and role."""
    known: dict[tuple[str, str], list[HeadId]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            known.setdefault((row["model"], row["role"]), []).append(HeadId.parse(row["head"]))
    return known


def compare(model: mh.Model, wanted: dict[str, list[HeadId]], quick: bool) -> dict[str, Any]:
    """Find the roles of heads, and compare them with the published heads."""
    start = time.process_time()
    judged = of_roles(mh.behaviour.indirect_object_roles(model, n=4 if quick else 64, most=2 if quick else 4))
    told: dict[str, Any] = {"cpu seconds": round(time.process_time() - start, 1)}
    for role, heads in wanted.items():
        told[role] = agreement(*judged[role], heads) if role in judged else {"not found": "its step was not reached"}
    return told


def agreement(score: np.ndarray, found: set[HeadId], heads: list[HeadId]) -> dict[str, Any]:
    """How the published heads stand in a score of all heads that were measured."""
    measured = np.isfinite(score)
    listed = np.zeros(score.shape, dtype=bool)
    for head in heads:
        listed[head.layer, head.head] = True
    own, others = score[listed & measured], score[~listed & measured]
    test = mannwhitneyu(own, others, alternative="greater") if len(own) and len(others) else None
    return {
        "published": [str(head) for head in heads],
        "found": [str(head) for head in sorted(found)],
        "both": [str(head) for head in heads if head in found],
        "rank of each": {str(head): 1 + int((score > score[head.layer, head.head]).sum()) for head in heads},
        "heads measured": int(measured.sum()),
        "area under the ROC curve": None if test is None else float(test.statistic / (len(own) * len(others))),
        "p": None if test is None else float(test.pvalue),
    }


def of_roles(found: IndirectObjectRoles) -> dict[str, Judged]:
    """Each role's score and heads; roles whose step was not reached are left out."""
    return {
        role: (sign * found.steps[step].scores.values, set(found.heads(role)))
        for role, (step, sign) in STEPS.items()
        if step in found.steps
    }


if __name__ == "__main__":
    main()
