"""Limits: what ``budget=`` stands for."""

from __future__ import annotations

import math

import pytest

from mechheads.limits import DEFAULT_LIMITS, Limits, budget_bytes


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (None, 4 * 2**30),
        (1000, 1000),
        ("1000", 1000),
        ("2 GB", 2**31),
        ("1.5 kb", 1536),
        (" 3MB ", 3 * 2**20),
        ("1 TB", 2**40),
    ],
)
def test_limits_of_a_budget_are_its_bytes_and_the_usual_pieces(budget, size):
    assert Limits.of(budget) == Limits(memory=size)
    assert budget_bytes(budget) == size


def test_limits_of_nothing_are_the_default_and_limits_of_limits_are_these():
    assert Limits.of(None) == DEFAULT_LIMITS == Limits()
    given = Limits(memory=5, tokens=1)
    assert Limits.of(given) is given


@pytest.mark.parametrize("budget", [0, -5, 0.5, "0 GB", "-1 GB", "much", "2 XB", "", "1.2.3 GB", math.nan, math.inf])
def test_a_budget_that_makes_no_sense_is_refused(budget):
    for read in (Limits.of, budget_bytes):
        with pytest.raises(ValueError, match='give a number of bytes or a text such as "2 GB"'):
            read(budget)
