"""How often intervals hold the true mean: ``python -m benchmarks.coverage --out benchmarks/coverage.json``.

Many experiments are simulated, with effects of mean 0 in 3 to 30 clusters. The benchmark measures the share of 95%
intervals that hold the mean, for clusters of equal and of unequal size (1, 2, 3 and 4 prompts in turn, which share all,
half or nothing of what varies). For two clusters, it measures the share of ranges that hold the mean. It also measures
the share of sign-flip p of 0.05 or less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.results.stats import cluster_range, clustered_interval, sign_flip_p

CLUSTERS = (3, 4, 5, 6, 8, 10, 12, 16, 20, 30)
SIZES = (1, 2, 3, 4)
"""The number of prompts in unequal clusters, in turn."""
CLUSTERS_OF_P = (8, 12, 20)

Draw = Callable[[np.random.Generator, tuple[int, ...]], Float[np.ndarray, "..."]]
EFFECTS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "rare and large": lambda rng, shape: np.where(rng.random(shape) < 0.05, 19.0, -1.0),
}
"""Distributions of effects, all with mean 0; the last is 19 with a probability of 5%, and otherwise -1."""
SHARED = {"all": (1.0, 0.0), "half": (0.5**0.5, 0.5**0.5), "nothing": (0.0, 1.0)}
"""How much the prompts of a cluster share: the factor of the cluster's effect, and of each prompt's effect."""


def holds(ends: tuple[np.ndarray, np.ndarray]) -> float:
    """The share of intervals that hold 0."""
    return float(((ends[0] <= 0) & (ends[1] >= 0)).mean())


def equal(effects: str, clusters: int, draws: int) -> float:
    """Coverage with clusters of equal size."""
    return holds(clustered_interval(EFFECTS[effects](_rng(clusters), (draws, clusters))))


def unequal(effects: str, clusters: int, draws: int, shared: str) -> float:
    """Coverage with clusters of 1, 2, 3 and 4 prompts in turn."""
    rng, draw = _rng(clusters), EFFECTS[effects]
    label = np.repeat(np.arange(clusters), np.resize(SIZES, clusters))
    of_cluster, of_prompt = SHARED[shared]
    values = of_cluster * draw(rng, (draws, clusters))[:, label] + of_prompt * draw(rng, (draws, len(label)))
    return holds(clustered_interval(values, label))


def false_positives(effects: str, clusters: int, draws: int) -> float:
    """The share of sign-flip p of 0.05 or less if the mean is 0."""
    return float((sign_flip_p(EFFECTS[effects](_rng(clusters), (draws, clusters))) <= 0.05).mean())


def measure(draws: int) -> dict[str, Any]:
    """All results."""
    of_mean = ("normal", "exponential")
    result: dict[str, Any] = {
        "draws": draws,
        "clusters": list(CLUSTERS),
        "equal": {name: [equal(name, n, draws) for n in CLUSTERS] for name in of_mean},
        "unequal": {
            name: {shared: [unequal(name, n, draws, shared) for n in CLUSTERS] for shared in SHARED} for name in of_mean
        },
        "range of two": {name: holds(cluster_range(EFFECTS[name](_rng(2), (draws, 2)))) for name in of_mean},
        "clusters of p": list(CLUSTERS_OF_P),
        "false positives": {name: [false_positives(name, n, draws) for n in CLUSTERS_OF_P] for name in EFFECTS},
    }
    return result


def markdown(result: dict[str, Any]) -> str:
    """The table of coverage: one column for each kind of effects and clusters."""
    columns = {f"{name}, equal clusters": result["equal"][name] for name in result["equal"]}
    for name, kinds in result["unequal"].items():
        for shared, values in kinds.items():
            columns[f"{name}, unequal, sharing {shared}"] = values
    return _table("clusters", result["clusters"], columns)


def markdown_of_p(result: dict[str, Any]) -> str:
    """The table of false positives."""
    return _table("clusters", result["clusters of p"], result["false positives"])


def _table(first: str, labels: list[int], columns: dict[str, list[float]]) -> str:
    rows = [[first, *columns], ["---"] * (1 + len(columns))]
    rows += [[str(n), *(f"{values[i]:.1%}" for values in columns.values())] for i, n in enumerate(labels)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rng(clusters: int) -> np.random.Generator:
    return np.random.default_rng(clusters)


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    result = measure(given.draws)
    print(markdown(result), markdown_of_p(result), sep="\n", file=sys.stderr)
    for name, share in result["range of two"].items():
        print(f"the range of two clusters holds the mean of {name} effects in {share:.1%}", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
