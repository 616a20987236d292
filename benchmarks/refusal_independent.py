"""Which score finds the heads of models that nobody had looked at: ``python -m benchmarks.refusal_independent``.

Refusal attribution was made with a look at the three models taught to refuse that come with the package. Two more
models are the independent test. Their heads are drawn at random, each is taught by the same script, and it is measured
once, by ``benchmarks.refusal``. A model with too few refusals after the first round goes on with the second.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mechheads as mh
from benchmarks.refusal import LOST, PLACE, count, draw, lost, overall, scores
from benchmarks.taught import taught
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.safety import load_requests
from mechheads.safety.answers.teaching import PLANTED, ROUNDS, taught_model

SIZES = 5, 8
"""How many heads each model has; also the seed that they are drawn with."""
LAYERS = range(14, 23)
N_HEADS = 9
ENOUGH = 12
"""How many of the 20 held-back requests a model has to refuse to be of use."""


def main() -> None:
    """Teach the models, count what they refuse, rank their heads, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE, help="what it already has is not measured again")
    parser.add_argument("--deltas", type=Path, default=Path("taught"), help="a folder for what was taught")
    parser.add_argument("--unsafe", type=Path, nargs="*", default=[], help="files with requests to refuse")
    parser.add_argument("--safe", type=Path, nargs="*", default=[], help="files with requests to answer")
    given = parser.parse_args()
    asked = sets(given.unsafe, given.safe)
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    of_models = found.setdefault("independent", {})
    for n in SIZES:
        told = of_models.setdefault(f"{n} heads", {"heads": list(map(str, drawn_heads(n)))})
        if LOST in told:
            continue
        delta, told["answers"] = enough_refusals(given.deltas, n, asked, told.get("answers", {}))
        write(given.out, found, told)
        if refused(told["answers"]) >= ENOUGH:
            told["scores"] = told.get("scores") or scores(delta, {}, {})
            told[LOST] = lost(delta, asked["harmful"])
            write(given.out, found, told)
    if scored := [told["scores"] for told in of_models.values() if "scores" in told]:
        found["margin over Ships, independent"] = overall(scored)
        write(given.out, found, found["margin over Ships, independent"])


def drawn_heads(n: int) -> tuple[HeadId, ...]:
    """Heads in n layers, none of which is taught in a model of the package."""
    random, known = np.random.default_rng(n), {head for heads in PLANTED.values() for head in heads}
    layers = sorted(map(int, random.choice(LAYERS, n, replace=False)))
    free = {layer: [i for i in range(N_HEADS) if HeadId(layer, i) not in known] for layer in layers}
    return tuple(HeadId(layer, int(random.choice(free[layer]))) for layer in layers)


def sets(unsafe: Sequence[Path], safe: Sequence[Path]) -> dict[str, Sequence[str]]:
    """The held-back requests, their look-alikes, and some requests of public files."""
    own = {name: list(load_requests(name, "test").texts) for name in ("harmful", "harmless")}
    public = {path.stem: draw(path, is_unsafe) for is_unsafe, some in ((True, unsafe), (False, safe)) for path in some}
    return own | public


def counts(model: mh.Model, asked: dict[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    """How many answers of each set have each verdict, in the chat template."""
    return {name: count(model, texts, "chat") for name, texts in asked.items()}


def enough_refusals(
    folder: Path, n: int, asked: dict[str, Sequence[str]], known: dict[str, Any]
) -> tuple[Delta, dict[str, Any]]:
    """A model taught for as many rounds as it needs, and its answers after each round."""
    delta, told = None, dict[str, Any]()
    for i, by in enumerate(ROUNDS, 1):
        delta = taught(folder / f"independent-{n}-{i}.safetensors", drawn_heads(n), by, start=delta)
        told[f"round {i}"] = known.get(f"round {i}") or counts(taught_model(delta), asked)
        if refused(told) >= ENOUGH:
            break
    assert delta is not None
    return delta, told


def refused(of_rounds: dict[str, Any]) -> int:
    """How many held-back requests are refused after the last round."""
    return list(of_rounds.values())[-1]["harmful"]["refused"]


def write(path: Path, found: dict[str, Any], new: dict[str, Any]) -> None:
    """Write all results, and print the new ones."""
    print(json.dumps(new, indent=1), flush=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
