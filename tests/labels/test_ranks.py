"""Ranks of targets, by few columns and by whole rows; large entries of rows, against torch's sorting and counting."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mechheads.labels import ranks as of_ranks
from mechheads.labels.ranks import Ranks, count, kth_largest
from mechheads.limits import settings


@dataclass(frozen=True)
class Columns:
    """A model whose columns of W_U differ by so much."""

    spread: float
    dtype: torch.dtype
    d_model = 16
    d_vocab = 1100

    def unembedding(self, start: int, stop: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        one, each = torch.randn(16, 1, generator=draw), torch.randn(16, self.d_vocab, generator=draw)
        return (one + self.spread * each)[:, start:stop]


@pytest.mark.parametrize(  # a spread of 1e-7 is about what float32 rounds; with bfloat16, W_U comes in blocks
    ("spread", "dtype"), [(1e-7, torch.float32), (1.0, torch.bfloat16)]
)
@pytest.mark.parametrize("by_hubs", [True, False])
def test_few_columns_rule_out_nothing_that_whole_rows_would_find(
    spread: float, dtype: torch.dtype, by_hubs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_ranks, "_MANY", 0 if by_hubs else 10**9)
    model: Any = Columns(spread, dtype)
    sources, tokens, k = 70, model.d_vocab, 10
    draw = torch.Generator().manual_seed(1)
    path, other = ((torch.randn(sources, 4, generator=draw), torch.randn(4, 16, generator=draw)) for _ in range(2))
    source_of, target = torch.arange(sources).repeat_interleave(tokens), torch.arange(tokens).repeat(sources)
    found = []
    for tried in (True, False):
        with settings(budget=2**22):
            ranks = Ranks(model, source_of, target, torch.full_like(target, k))
        assert ranks.tried == [256] and ranks.by_hubs is by_hubs
        ranks.tried = ranks.tried if tried else []
        largest, smallest = ranks.top([path, other])
        hits = next(ranks.hits([(path, slice(0, tokens))]))
        found.append(torch.cat([largest.view(-1, tokens), smallest.view(-1, tokens), hits[:4]]))
    assert torch.equal(*found)
    assert (found[1].sum(1) >= k).all()


def rows(columns: int, *, ties: bool = False) -> torch.Tensor:
    found = torch.randn(7, columns, generator=torch.Generator().manual_seed(columns))
    return found.round() if ties else found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("columns", [10, 300, 5000])
def test_the_kth_largest_is_that_of_sorting(columns: int, k: int, ties: bool) -> None:
    entries = rows(columns, ties=ties)
    torch.testing.assert_close(kth_largest(entries, k), entries.sort(dim=1, descending=True).values[:, k - 1 : k])


@pytest.mark.parametrize("compare", [operator.gt, operator.lt])
@pytest.mark.parametrize("columns", [5, 2048, 4100])
def test_entries_are_counted(columns: int, compare: Any) -> None:
    entries = rows(columns, ties=True)
    own = entries[:, 2:3]
    assert count(entries, compare, own).tolist() == compare(entries, own).sum(1).tolist()
    assert count(entries[:0], compare, own[:0]).tolist() == []
