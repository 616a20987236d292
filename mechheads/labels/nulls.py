"""The null distribution of a relation score: the same head and words, with targets shuffled among the sources.

A head that raises " Paris" for every source, or prefers common words, hits some targets by that alone. Let
H[i, j] be 1 if source i has target j among its k largest, else 0. The score of the relation is the mean of H[i, i].
Under the null every matching of sources and targets is equally likely: T = sum over i of H[i, pi(i)], pi a random
permutation. p is the share of permutations with T at least as large as the observed one.

If a source is read in several ways, T is the largest over the ways, each shuffled by the same pi: the selection of the
best reading is part of the null.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import factorial, lgamma, log

import numpy as np
from jaxtyping import Bool, Int

EXACT_UP_TO = 7
"""Up to this number of pairs, all matchings of a relation are counted."""


def matchings(n: int, draws: int, seed: int) -> Int[np.ndarray, "draw pair"]:
    """All matchings of ``n`` sources and targets if there are few, otherwise random ones."""
    if n <= EXACT_UP_TO:
        found = np.array(list(permutations(range(n))))
    else:
        of_pairs = np.tile(np.arange(n, dtype=np.min_scalar_type(n)), (draws, 1))
        found = np.random.default_rng(seed).permuted(of_pairs, axis=1)
    return np.asfortranarray(found)


def matching_null(
    hits: Bool[np.ndarray, "reading source target"], drawn: Callable[[int], Int[np.ndarray, "draw pair"]]
) -> tuple[float, float]:
    """p of the observed matching (how often another has as many hits), and the mean share of hits over matchings.

    p is exact if ``drawn`` gives all matchings. Otherwise it is (1 + draws with as many hits) / (1 + draws). If no draw
    reaches the observed number, it is the bound P(T >= t) <= e_t(r) (n - t)! / n! if that is smaller, with r the hits
    in each row (or column), and e_t the elementary symmetric polynomial, which counts the ways to place t hits in
    different rows. The bounds of several readings are added.
    """
    n = hits.shape[-1]
    seen = int(np.diagonal(hits, axis1=1, axis2=2).sum(1).max())
    if seen == 0 and len(hits) == 1:
        return 1.0, float(hits.mean())
    order = drawn(n)
    largest = np.max([_totals(table, order) for table in hits], axis=0)
    share = float(hits.mean() if len(hits) == 1 else largest.mean() / n)
    as_many = int((largest >= seen).sum())
    if len(order) == factorial(n) and n <= EXACT_UP_TO:
        return as_many / len(order), share
    p = (1 + as_many) / (1 + len(order))
    if as_many:
        return p, share
    return min(p, sum(min(_bound(table.sum(axis), seen) for axis in (0, 1)) for table in hits)), share


def _totals(table: Bool[np.ndarray, "source target"], order: Int[np.ndarray, "draw pair"]) -> Int[np.ndarray, " draw"]:
    """The hits of each matching, counted source by source: in one step it takes four times as long."""
    totals = np.zeros(len(order), dtype=np.int64)
    for source in np.flatnonzero(table.any(1)).tolist():
        totals += table[source].take(order[:, source])
    return totals


def _bound(counts: Int[np.ndarray, " line"], t: int) -> float:
    """e_t(counts) (n - t)! / n!, at most 1; counts are divided by n first, to stay within range."""
    n = len(counts)
    symmetric = np.zeros(t + 1)
    symmetric[0] = 1.0
    for count in counts[counts > 0] / n:
        symmetric[1:] += count * symmetric[:-1]
    if symmetric[t] == 0:
        return np.finfo(float).tiny
    logarithm = log(symmetric[t]) + t * log(n) + lgamma(n - t + 1) - lgamma(n + 1)
    return float(np.exp(min(logarithm, 0.0)))
