"""A run that shares its prompts' beginnings with another is the same as one computed in full."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import pytest
import torch

import mechheads as mh
from mechheads.engine.cached_runs import run_sharing_prefix
from mechheads.limits import Limits
from mechheads.runs.head_cache import RUN_SITES, HeadCache

CLEAN = [
    " When John and Mary went to the store John gave a book to Mary",
    " The capital of France is Paris the capital of Spain is",
    " a cat one dog two three",
]
CORRUPTED = [
    " When John and Mary went to the store John gave a book to John",
    " The capital of France is Paris the capital of Italy is",
    " a cat one dog two three",
]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma"])
@pytest.mark.parametrize("tokens_a_batch", [1, 1024])
def test_what_follows_a_shared_beginning_is_computed_and_the_rest_taken(kind, tokens_a_batch, tiny, monkeypatch):
    model = mh.load(tiny(kind))
    clean, corrupted = (mh.Prompts(texts).tokens(model) for texts in (CLEAN, CORRUPTED))
    base = HeadCache.run(model, clean, sites=("z", *RUN_SITES))
    wanted = HeadCache.run(model, corrupted, sites=("z",))
    tokens_seen = []
    through = type(model.backend).finish
    monkeypatch.setattr(
        type(model.backend), "finish", lambda self, x: tokens_seen.append(x.shape[1]) or through(self, x)
    )
    found = run_sharing_prefix(base, corrupted, limits=Limits(run_tokens=tokens_a_batch))
    if model.backend.layout == "queries":
        assert max(tokens_seen) < clean.ids.shape[1] / 2
    torch.testing.assert_close(found.z.stacked(), wanted.z.stacked(), atol=1e-5, rtol=1e-5)
    for i, length in enumerate(clean.lengths):
        torch.testing.assert_close(found.final[i, :length], wanted.final[i, :length], atol=1e-5, rtol=1e-5)
    differs = (found.z.stacked() - base.z.stacked()).abs().amax((1, 2, 4)) > 1e-4
    first = (clean.ids != corrupted.ids).long().argmax(1)
    assert not any(differs[i, : first[i]].any() for i in range(2))
    assert all(differs[i, first[i]] for i in range(2))
    torch.testing.assert_close(found.z.stacked()[2], base.z.stacked()[2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tokens_a_batch", [1, 40, 1024])
def test_two_lists_of_prompts_in_shared_passes_are_as_each_alone(tokens_a_batch, llama):
    """With 40 tokens in a pass, one pass holds the last prompts of one list and the first of the other."""
    lists = [mh.Prompts(texts).tokens(llama) for texts in (CLEAN, CORRUPTED)]
    asked = [("z", *RUN_SITES), ("q", "pattern")]
    limits = Limits(run_tokens=tokens_a_batch)
    runs = HeadCache.together(llama, list(zip(lists, asked, strict=True)), limits=limits)
    for run, tokens, sites in zip(runs, lists, asked, strict=True):
        alone = HeadCache.run(llama, tokens, sites=sites)
        assert set(run.stores) == set(sites)
        for site in sites:
            for layer in range(llama.n_layers):
                torch.testing.assert_close(run.stores[site][layer], alone.stores[site][layer], atol=1e-5, rtol=1e-5)
        real = tokens.mask
        torch.testing.assert_close(run.final[real], alone.final[real], atol=1e-5, rtol=1e-5)
