"""Large entries of rows, against torch's own sorting and counting."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from mechheads.labels.large_entries import count, kth_largest


def rows(columns: int, *, ties: bool = False) -> torch.Tensor:
    found = torch.randn(7, columns, generator=torch.Generator().manual_seed(columns))
    return found.round() if ties else found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, 10])
@pytest.mark.parametrize("columns", [10, 128, 300, 1280, 5000])
def test_the_kth_largest_is_that_of_sorting(columns: int, k: int, ties: bool) -> None:
    entries = rows(columns, ties=ties)
    torch.testing.assert_close(kth_largest(entries, k), entries.sort(dim=1, descending=True).values[:, k - 1 : k])


def test_the_largest_entries_may_be_in_one_block_or_beside_all_blocks() -> None:
    entries = rows(1290).clamp_max(5)
    entries[0, 130:140] = torch.arange(10.0, 20.0)
    entries[1, 1280:] = torch.arange(10.0, 20.0)
    assert kth_largest(entries, 10)[:2, 0].tolist() == [10, 10]
    assert kth_largest(entries, 3)[:2, 0].tolist() == [17, 17]


@pytest.mark.parametrize("compare", [operator.gt, operator.lt])
@pytest.mark.parametrize("columns", [5, 2047, 2048, 4100])
def test_entries_are_counted(columns: int, compare: Any) -> None:
    entries = rows(columns, ties=True)
    own = entries[:, 2:3]
    assert count(entries, compare, own).tolist() == compare(entries, own).sum(1).tolist()
    assert count(entries[:0], compare, own[:0]).tolist() == []
