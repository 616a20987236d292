"""Ranks of targets, sampled and whole."""

from __future__ import annotations

import torch

from mechheads.labels.ranks import Ranks


class Alike:
    """A W_U whose columns differ by about as much as float32 rounds."""

    d_model, d_vocab, dtype = 16, 1100, torch.float32

    def unembedding(self, start: int, stop: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(0)
        one, each = torch.randn(16, 1, generator=draw), torch.randn(16, self.d_vocab, generator=draw)
        return (one + 1e-7 * each)[:, start:stop]


def test_a_sample_rules_out_nothing_that_rounding_could_decide() -> None:
    """With samples of the columns, every pair is decided as whole rows decide it."""
    sources, tokens, k = 4, Alike.d_vocab, 10
    draw = torch.Generator().manual_seed(1)
    path = torch.randn(sources, 4, generator=draw), torch.randn(4, 16, generator=draw)
    source_of, target = torch.arange(sources).repeat_interleave(tokens), torch.arange(tokens).repeat(sources)
    found = []
    for sampled in (True, False):
        ranks = Ranks(Alike(), source_of, target, torch.full_like(target, k), ties="target", memory=2**22)
        assert len(ranks.samples) == 1
        ranks.samples = ranks.samples if sampled else []
        largest, smallest = ranks.top([path])
        hits = [next(ranks.hits([(path, slice(0, tokens), sign)])) for sign in (1, -1)]
        found.append(torch.cat([largest.view(-1, tokens), smallest.view(-1, tokens), *(hit[:4] for hit in hits)]))
    assert torch.equal(*found)
    assert (found[1].sum(1) >= k).all()
