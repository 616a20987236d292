"""Which score finds the heads of models that nobody had looked at: ``python -m benchmarks.refusal_independent``.

Refusal attribution was made with a look at the three models taught to refuse that come with the package. Two more
models are the independent test. Their heads are drawn at random, each is taught by the same script, and it is measured
once, by ``benchmarks.refusal``. A model with too few refusals after the first round goes on with the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.refusal import LOST, lost, overall, scores
from benchmarks.taught import Given, taught
from benchmarks.teaching.planted import PLANTED, ROUNDS, taught_model
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta

SIZES = 5, 8
"""How many heads each model has; also the seed that they are drawn with."""
LAYERS = range(14, 23)
N_HEADS = 9
ENOUGH = 12
"""How many of the 20 held-back requests a model has to refuse to be of use."""


def main() -> None:
    """Teach the models, count what they refuse, rank their heads, and write the results."""
    given = Given.read(__doc__)
    of_models = given.found.setdefault("independent", {})
    for n in SIZES:
        told = of_models.setdefault(f"{n} heads", {"heads": list(map(str, drawn_heads(n)))})
        if LOST in told:
            continue
        delta, told["answers"] = enough_refusals(given, n, told.get("answers", {}))
        given.write(told)
        if refused(told["answers"]) >= ENOUGH:
            told["scores"] = told.get("scores") or scores(delta, {}, {})
            told[LOST] = lost(delta, given.asked["harmful"])
            given.write(told)
    if scored := [told["scores"] for told in of_models.values() if "scores" in told]:
        given.found["margin over Ships, independent"] = overall(scored)
        given.write(given.found["margin over Ships, independent"])


def drawn_heads(n: int) -> tuple[HeadId, ...]:
    """Heads in n layers, none of which is taught in a model of the package."""
    random, known = np.random.default_rng(n), {head for heads in PLANTED.values() for head in heads}
    layers = sorted(map(int, random.choice(LAYERS, n, replace=False)))
    free = {layer: [i for i in range(N_HEADS) if HeadId(layer, i) not in known] for layer in layers}
    return tuple(HeadId(layer, int(random.choice(free[layer]))) for layer in layers)


def enough_refusals(given: Given, n: int, known: dict[str, Any]) -> tuple[Delta, dict[str, Any]]:
    """A model taught for as many rounds as it needs, and its answers after each round."""
    first, *more = ROUNDS
    delta = taught(given.deltas / f"independent-{n}-1.safetensors", drawn_heads(n), first)
    told = {"round 1": known.get("round 1") or given.counts(taught_model(delta))}
    for i, by in enumerate(more, 2):
        if refused(told) >= ENOUGH:
            break
        delta = taught(given.deltas / f"independent-{n}-{i}.safetensors", drawn_heads(n), by, start=delta)
        told[f"round {i}"] = known.get(f"round {i}") or given.counts(taught_model(delta))
    return delta, told


def refused(of_rounds: dict[str, Any]) -> int:
    """How many held-back requests are refused after the last round."""
    return list(of_rounds.values())[-1]["harmful"]["refused"]


if __name__ == "__main__":
    main()
