"""Ranks of targets, sampled and whole."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from mechheads.labels.ranks import Ranks
from mechheads.limits import settings


@dataclass(frozen=True)
class Columns:
    """A model whose columns of W_U differ by so much."""

    spread: float
    d_model = 16
    d_vocab = 1100
    dtype = torch.float32

    def unembedding(self, start: int, stop: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        one, each = torch.randn(16, 1, generator=draw), torch.randn(16, self.d_vocab, generator=draw)
        return (one + self.spread * each)[:, start:stop]


@pytest.mark.parametrize("spread", [1.0, 1e-7])  # the latter is about what float32 rounds
def test_a_sample_rules_out_nothing_that_whole_rows_would_find(spread: float) -> None:
    model = Columns(spread)
    sources, tokens, k = 4, model.d_vocab, 10
    draw = torch.Generator().manual_seed(1)
    path = torch.randn(sources, 4, generator=draw), torch.randn(4, 16, generator=draw)
    source_of, target = torch.arange(sources).repeat_interleave(tokens), torch.arange(tokens).repeat(sources)
    found = []
    for sampled in (True, False):
        with settings(budget=2**22):
            ranks = Ranks(model, source_of, target, torch.full_like(target, k), ties="target")
        assert len(ranks.samples) == 1
        ranks.samples = ranks.samples if sampled else []
        largest, smallest = ranks.top([path])
        hits = [next(ranks.hits([(path, slice(0, tokens), sign)])) for sign in (1, -1)]
        found.append(torch.cat([largest.view(-1, tokens), smallest.view(-1, tokens), *(hit[:4] for hit in hits)]))
    assert torch.equal(*found)
    assert (found[1].sum(1) >= k).all()
