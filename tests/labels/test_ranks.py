"""Ranks of targets, by few columns and by whole rows; large entries of rows, against torch's sorting and counting."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from mechheads.labels import ranks as of_ranks
from mechheads.labels.ranks import Ranks, count, kth_largest, multiply
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


@pytest.mark.parametrize("spread", [1.0, 1e-7])  # the latter is about what float32 rounds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])  # with bfloat16, W_U comes in blocks
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


@pytest.mark.parametrize(
    ("by_torch", "by_numpy", "bits", "taken"),
    [(2.0, 1.0, 0.0, "numpy"), (1.0, 2.0, 0.0, "torch"), (2.0, 1.0, 1e-6, "torch")],
)
def test_the_faster_product_is_taken_if_it_gives_the_same_bits(
    by_torch: float, by_numpy: float, bits: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(2)
    left, right = torch.randn(4, 16, generator=draw), torch.randn(1100, 16, generator=draw).T
    exact = (left.double() @ right.double()).float()
    assert torch.allclose(of_ranks._by_numpy(left, right), exact, rtol=1e-5, atol=1e-5)
    made = {"torch": left @ right, "numpy": left @ right + bits}
    calls: list[str] = []
    monkeypatch.setattr(of_ranks, "_FASTER", {})
    monkeypatch.setattr(torch, "mm", lambda *_: calls.append("torch") or made["torch"])
    monkeypatch.setattr(of_ranks, "_by_numpy", lambda *_: calls.append("numpy") or made["numpy"])
    times = iter([0.0, by_torch, by_torch + by_numpy])
    first = multiply(left, right, lambda: next(times))
    assert torch.equal(first, multiply(left, right)) and torch.allclose(first, exact, rtol=1e-5, atol=1e-5)
    assert calls == ["torch", "numpy", taken]


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
