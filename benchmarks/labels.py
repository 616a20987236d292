"""Relation scores of the default model, compared with a plain loop: ``python -m benchmarks.labels``.

The loop computes the paper's formula directly: for every relation and head E' @ W_V @ W_O @ W_U, then topk, with tokens
through the first MLP and raw weights. It runs on a sample of heads spread over the layers, and its time is scaled to
all heads. Its hits must be the same as ours.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from typing import Any

import numpy as np
import torch

import mechheads as mh
from benchmarks import machine
from mechheads.labels.relations import load_relations
from mechheads.labels.usable_pairs import KeptPairs, keep_pairs

HEADS = [(layer, (2 * layer) % 9) for layer in range(1, 30, 5)]
REPEATS = 3
MIN_PAIRS = 30


@mh.settings(progress=False)
def main() -> None:
    """Run both in turns, and print medians, the ratio and memory."""
    model = mh.load()
    kept = [one for one in keep_pairs(load_relations(), model.tokenizer) if len(one.pairs) >= MIN_PAIRS]
    sources = len({source for one in kept for source, _ in one.tokens})
    n_heads = model.n_layers * model.n_heads
    pairs = sum(len(one.pairs) for one in kept)
    print(f"{len(kept)} relations, {pairs} pairs of {sources} distinct sources, {n_heads} heads")
    ours, plain, scoring = [], [], []
    for repeat in range(REPEATS):
        mine = machine.measured(lambda: ours_of(model), "cpu")
        untested = machine.measured(lambda: ours_of(model, scoring=mh.labels.ScoringSettings(min_effect=1.0)), "cpu")
        loop = machine.measured(lambda: obvious_loop(model, kept), "cpu")
        different = compare(mine.result, loop.result)
        scaled = loop.seconds * n_heads / len(HEADS)
        ours.append(mine.seconds)
        scoring.append(untested.seconds)
        plain.append(scaled)
        print(
            f"run {repeat + 1} of {REPEATS}: mechheads {mine.seconds:.1f} s with its null and {untested.seconds:.1f} s "
            f"without, {mine.peak / 2**20:.0f} MB; the loop {loop.seconds:.1f} s for {len(HEADS)} heads, "
            f"{scaled:.0f} s for all; {different} hits differ",
            file=sys.stderr,
        )
    middle = [statistics.median(each) for each in (ours, scoring, plain)]
    print(f"medians: mechheads {middle[0]:.1f} s with its null, {middle[1]:.1f} s without; the loop {middle[2]:.0f} s")
    print(f"{middle[2] / middle[0]:.1f} times faster with the null, {middle[2] / middle[1]:.1f} times without")


def ours_of(model: mh.Model, **options: Any) -> mh.HeadScores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        form: dict[str, Any] = {"source": "first_mlp", "norm": "raw", "min_pairs": MIN_PAIRS}
        return mh.relation_scores(model, **form | options)


def obvious_loop(model: mh.Model, relations: list[KeptPairs]) -> dict[tuple[int, int, str], np.ndarray]:
    """The hits of the sampled heads on each relation."""
    found = {}
    with torch.no_grad():
        for layer, head in HEADS:
            for kept in relations:
                source, target = (torch.tensor(ids) for ids in zip(*kept.tokens, strict=True))
                seen = model.first_mlp(model.W_E[source]) if layer else model.W_E[source]
                rows = seen @ model.W_V[layer][head] @ model.W_O[layer][head] @ model.W_U
                top = rows.topk(1 if kept.relation.copying else 10, dim=1).indices
                found[layer, head, kept.relation.name] = (top == target[:, None]).any(1).numpy()
    return found


def compare(scores: mh.HeadScores, loop: dict[tuple[int, int, str], np.ndarray]) -> int:
    """The number of hits that differ."""
    values = scores.dataset["values"]
    return sum(
        int((values.sel(relation=name).values[layer, head, : len(hits)] != hits).sum())
        for (layer, head, name), hits in loop.items()
    )


if __name__ == "__main__":
    main()
