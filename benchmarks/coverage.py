"""How often intervals hold the true mean: ``python -m benchmarks.coverage --out benchmarks/coverage.json``.

Many experiments are simulated, with effects of mean 0 in 3 to 30 clusters. The benchmark measures the share of 95%
intervals that hold the mean, for clusters of equal and of unequal size (1, 2, 3 and 4 prompts in turn, which share all,
half or nothing of what varies). For two clusters, it measures the share of ranges that hold the mean. It also measures
the share of sign-flip p of 0.05 or less; the coverage for shares, differences of shares, and effects that are never
below 0; and for families of 270 heads, how often any that does nothing has a family p of 0.05 or less, and how often
one with an effect of two standard deviations has. It takes some minutes.
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
from scipy.stats import rankdata

from mechheads.results.bounded import bounded_interval
from mechheads.results.stats import cluster_range, clustered_interval, family_p, sign_flip_p

CLUSTERS = (3, 4, 5, 6, 8, 10, 12, 16, 20, 30)
SIZES = (1, 2, 3, 4)
"""The number of prompts in unequal clusters, in turn."""
CLUSTERS_OF_P = (8, 12, 20)
PROMPTS = (8, 16, 32)
CLUSTERS_OF_FAMILIES = (5, 6, 8, 10, 16, 20, 40)
HEADS, EFFECT, FLIPS = 270, 2.0, 499

Draw = Callable[[np.random.Generator, tuple[int, ...]], Float[np.ndarray, "..."]]
EFFECTS: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape) - 1,
    "rare and large": lambda rng, shape: np.where(rng.random(shape) < 0.05, 19.0, -1.0),
}
"""Distributions of effects, all with mean 0; the last is 19 with a probability of 5%, and otherwise -1."""
IN_FAMILIES: dict[str, Draw] = {
    "normal": EFFECTS["normal"],
    "t3": lambda rng, shape: rng.standard_t(3, size=shape) / 3**0.5,
    "exponential": EFFECTS["exponential"],
    "lognormal": lambda rng, shape: (rng.lognormal(size=shape) - np.e**0.5) / ((np.e - 1) * np.e) ** 0.5,
    "one prompt in ten": lambda rng, shape: np.where(rng.random(shape) < 0.1, 3.0, -1 / 3),
}
"""Distributions of the effects of heads that do nothing, all with mean 0 and variance 1."""
SHARED = {"all": (1.0, 0.0), "half": (0.5**0.5, 0.5**0.5), "nothing": (0.0, 1.0)}
"""How much the prompts of a cluster share: the factor of the cluster's effect, and of each prompt's effect."""


def holds(ends: tuple[np.ndarray, np.ndarray]) -> float:
    """The share of intervals that hold 0."""
    return float(((ends[0] <= 0) & (ends[1] >= 0)).mean())


def equal(effects: str, clusters: int, draws: int) -> float:
    """Coverage with clusters of equal size."""
    return holds(clustered_interval(EFFECTS[effects](_rng(clusters), (draws, clusters))))


def by_distribution(effects: str, clusters: int, draws: int) -> float:
    """Coverage with clusters of equal size, for the distributions of families."""
    return holds(clustered_interval(IN_FAMILIES[effects](_rng(clusters), (draws, clusters))))


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


def bounded(draws: int) -> dict[str, list[float]]:
    """Least coverage over shares from .05 to .95, over differences of two such, and coverage for gamma effects."""
    shares = np.linspace(0.05, 0.95, 19)
    found: dict[str, list[float]] = {}
    for n in PROMPTS:
        rng = _rng(n)

        def covers(values: Float[np.ndarray, "draw prompt"], mean: float, bounds: Any) -> float:
            low, high = bounded_interval(values, bounds=bounds)
            return float(((low <= mean) & (mean <= high)).mean())

        def pairs(before: float, after: float, alike: float, rng: np.random.Generator = rng) -> np.ndarray:
            one, other = rng.random((2, draws // 5, PROMPTS[-1]))
            same = rng.random(one.shape) < alike
            return (np.where(same, one, other) < after) * 1.0 - (one < before)

        of_share = [covers((rng.random((draws, n)) < share) * 1.0, share, (0, 1, True)) for share in shares]
        of_pairs = [
            covers(pairs(before, after, alike)[:, :n], after - before, (-1, 1, True))
            for alike in (0, 0.8)
            for before in shares[::3]
            for after in shares[::3]
        ]
        columns = {"share, least": min(of_share), "share, mean": float(np.mean(of_share))}
        columns |= {"difference, least": min(of_pairs), "difference, mean": float(np.mean(of_pairs))}
        columns |= {
            f"never below 0, gamma {shape}": covers(rng.gamma(shape, size=(draws, n)), shape, (0, None))
            for shape in (0.5, 2)
        }
        for name, value in columns.items():
            found.setdefault(name, []).append(value)
    return found


def _johnson(values: Float[np.ndarray, "head prompt"], signs: Float[np.ndarray, "pattern prompt"]) -> np.ndarray:
    """|t| with Johnson's (1978) correction for skewness, of each head under each pattern."""
    n, squares = values.shape[1], (values**2).mean(1)
    mean = signs @ values.T / n
    variance = np.maximum(squares - mean**2, 1e-12 * squares)
    third = signs @ (values**3).T / n - 3 * mean * squares + 2 * mean**3
    return np.abs(mean + third / (6 * variance * n) + third * mean**2 / (3 * variance**2)) / np.sqrt(variance / (n - 1))


def _ranks(values: Float[np.ndarray, "head prompt"], signs: Float[np.ndarray, "pattern prompt"]) -> np.ndarray:
    """The absolute sum of signed ranks (Wilcoxon), of each head under each pattern."""
    return np.abs(signs @ (np.sign(values) * rankdata(np.abs(values), axis=1)).T)


OTHERS = {"Johnson": _johnson, "ranks": _ranks}


def _family_of(statistic: Any, values: np.ndarray) -> np.ndarray:
    """Step-down p values of another statistic; the first pattern is what was seen."""
    n = values.shape[1]
    patterns = np.arange(2 ** (n - 1))[:, None] >> np.arange(n) if n <= 11 else _rng(0).integers(0, 2, (FLIPS + 1, n))
    signs = 1.0 - 2.0 * (patterns & 1)
    signs[0] = 1
    found = statistic(values, signs)
    order = np.argsort(found[0])
    reached = np.maximum.accumulate(found[:, order], axis=1) >= found[0, order] * (1 - 1e-9)
    p = np.empty(len(values))
    p[order] = np.maximum.accumulate(reached.mean(0)[::-1])[::-1]
    return p


def families(effects: str, clusters: int, trials: int, together: bool) -> dict[str, tuple[float, float]]:
    """How often a head that does nothing is found, and how often the one that has an effect, by each way."""
    draw, rng = IN_FAMILIES[effects], _rng(clusters)
    found: dict[str, list[tuple[bool, bool]]] = {}
    for _ in range(trials):
        values = draw(rng, (HEADS, clusters))
        if together:
            values = (values + draw(rng, (1, clusters))) / 2**0.5
        values[0] += EFFECT
        ways = {name: _family_of(statistic, values) for name, statistic in OTHERS.items()}
        ways["family p"] = family_p(values, n=FLIPS)
        for name, p in ways.items():
            found.setdefault(name, []).append((bool((p[1:] <= 0.05).any()), bool(p[0] <= 0.05)))
    return {name: tuple(np.mean(each, axis=0).tolist()) for name, each in found.items()}  # type: ignore[misc]


def measure(draws: int, trials: int) -> dict[str, Any]:
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
        "by distribution": {name: [by_distribution(name, n, draws) for n in CLUSTERS] for name in IN_FAMILIES},
        "prompts": list(PROMPTS),
        "bounded": bounded(draws),
        "trials": trials,
        "clusters of families": list(CLUSTERS_OF_FAMILIES),
        "families": {
            f"{name}, {'half shared' if together else 'independent'}": [
                families(name, n, trials, together) for n in CLUSTERS_OF_FAMILIES
            ]
            for name in IN_FAMILIES
            for together in (True, False)
        },
    }
    return result


def markdown(result: dict[str, Any]) -> str:
    """The table of coverage: one column for each kind of effects and clusters."""
    columns = {f"{name}, equal clusters": result["equal"][name] for name in result["equal"]}
    for name, kinds in result["unequal"].items():
        for shared, values in kinds.items():
            columns[f"{name}, unequal, sharing {shared}"] = values
    return _table("clusters", result["clusters"], columns)


def markdown_by_distribution(result: dict[str, Any]) -> str:
    """The table of coverage for each distribution of effects, with clusters of equal size."""
    return _table("clusters", result["clusters"], result["by distribution"])


def markdown_of_p(result: dict[str, Any]) -> str:
    """The table of false positives."""
    return _table("clusters", result["clusters of p"], result["false positives"])


def markdown_of_bounds(result: dict[str, Any]) -> str:
    """The table of coverage within bounds."""
    return _table("prompts", result["prompts"], result["bounded"])


def markdown_of_families(result: dict[str, Any], of: str = "family p") -> str:
    """The table of families: false heads, and the head with an effect, by the clusters."""
    columns = result["clusters of families"]
    rows = [["any false head / power", *map(str, columns)], ["---"] * (1 + len(columns))]
    for name, cells in result["families"].items():
        rows.append([name, *(f"{cell[of][0]:.2f} / {cell[of][1]:.2f}" for cell in cells)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


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
    parser.add_argument("--trials", type=int, default=100, help="families for each cell")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    result = measure(given.draws, given.trials)
    tables = (markdown, markdown_by_distribution, markdown_of_p, markdown_of_bounds)
    print(*(table(result) for table in tables), sep="\n", file=sys.stderr)
    for way in ("family p", *OTHERS):
        print(way, markdown_of_families(result, way), sep="\n", file=sys.stderr)
    for name, share in result["range of two"].items():
        print(f"the range of two clusters holds the mean of {name} effects in {share:.1%}", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
