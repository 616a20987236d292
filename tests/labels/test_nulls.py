"""The null of shuffled targets: by hand, exactly, and as random draws."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest

from mechheads.labels.static import matching_null, matchings


def exact(*tables: np.ndarray) -> float:
    """All matchings, one after the other; of several tables each time the one with the most hits."""
    n = len(tables[0])
    seen = max(np.diagonal(table).sum() for table in tables)
    counts = [
        max(sum(table[i, j] for i, j in enumerate(order)) for table in tables) for order in permutations(range(n))
    ]
    return float(np.mean([count >= seen for count in counts]))


def matching_p(hits: np.ndarray, drawn: Callable[[int], np.ndarray]) -> float:
    return matching_null(hits[None], drawn)[0]


def test_by_hand() -> None:
    drawn = lambda n: matchings(n, 0, 0)  # noqa: E731
    assert matching_p(np.zeros((5, 5), bool), drawn) == 1.0
    assert matching_p(np.ones((5, 5), bool), drawn) == 1.0
    assert matching_p(np.eye(5, dtype=bool), drawn) == pytest.approx(1 / 120)
    one = np.zeros((4, 4), bool)
    one[2, 2] = True
    assert matching_p(one, drawn) == pytest.approx(1 / 4)


@pytest.mark.parametrize("seed", range(5))
def test_random_draws_come_near_all_matchings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hits = rng.random((7, 7)) < 0.3
    np.fill_diagonal(hits, rng.random(7) < 0.5)
    wanted = exact(hits)
    assert matching_p(hits, lambda n: matchings(n, 0, 0)) == pytest.approx(wanted)
    draws = rng.permuted(np.tile(np.arange(7), (20_000, 1)), axis=1)
    assert matching_p(hits, lambda n: draws) == pytest.approx(wanted, abs=0.02)


def test_beyond_the_draws_the_bound_holds_and_bites() -> None:
    few = lambda n: matchings(n, 200, 0)  # noqa: E731
    for n in (8, 30):
        assert matching_p(np.eye(n, dtype=bool), few) < 1e-4 < 1 / 201
    rng = np.random.default_rng(1)
    for _ in range(20):
        hits = rng.random((7, 7)) < 0.15
        hits[np.arange(6), np.arange(6)] = True
        never = np.array([np.roll(np.arange(7), 1)])
        hits[np.arange(7), np.roll(np.arange(7), 1)] = False
        assert exact(hits) <= matching_p(hits, lambda n, never=never: never) + 1e-12  # one draw that has no hit


@pytest.mark.parametrize("readings", [1, 3])
def test_under_the_null_p_is_small_as_often_as_it_says(readings: int) -> None:
    rng, order = np.random.default_rng(readings - 1), matchings(30, 999, 5)
    tables = rng.random((400, readings, 30, 30)) < 0.1
    below = sum(matching_null(some, lambda n: order)[0] <= 0.05 for some in tables)
    assert below <= 0.05 * 400 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_draws_are_seeded_permutations() -> None:
    draws = matchings(12, 50, 3)
    assert np.array_equal(draws, matchings(12, 50, 3))
    assert not np.array_equal(draws, matchings(12, 50, 4))
    assert (np.sort(draws, axis=1) == np.arange(12)).all()


@pytest.mark.parametrize("seed", range(4))
def test_of_several_readings_the_largest_is_shuffled_too(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = rng.random((3, 6, 6)) < np.array([0.1, 0.3, 0.5])[:, None, None]
    p, share = matching_null(tables, lambda n: matchings(n, 0, 0))
    assert p == pytest.approx(exact(*tables))
    order = matchings(6, 0, 0)
    largest = np.max([[table[np.arange(6), one].sum() for one in order] for table in tables], axis=0)
    assert share == pytest.approx(largest.mean() / 6)
    assert share >= max(table.mean() for table in tables) - 1e-12
    assert p >= matching_p(tables[np.argmax([np.diagonal(table).sum() for table in tables])], lambda n: order) - 1e-12


def test_bounds_of_several_readings_add_up() -> None:
    few, one = (lambda n: matchings(n, 200, 0)), np.eye(30, dtype=bool)
    single = matching_null(one[None], few)[0]
    assert matching_null(np.stack([one, one]), few)[0] == pytest.approx(2 * single, rel=1e-9)
