"""The layout that a trial finds: the cheapest one on the families that have it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mechheads as mh
from support.levels import few
from support.releases import TRANSFORMERLENS_4, only_on_4

PREFERRED = "queries" if TRANSFORMERLENS_4 else "rows"
SHARED = (
    "afmoe",
    "cohere2",
    "falcon-7b",
    "gemma2",
    "gemma3",
    "gpt-bigcode",
    "gpt-j",
    "gpt-neox",
    "gpt-oss",
    "mixtral",
    "olmo2-mha",
)
SHARED += ("opt", "phi3-longrope", "qwen3", "stablelm-parallel")
"""Families whose copies share rows over cached keys, besides those of ``loaded``."""
WHOLE = ("bloom", "gpt-neo", "llama4", "mpt")
"""Families that TransformerBridge cannot resume from cached keys."""


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox", "gemma"])
def test_the_cheapest_layout_is_found(name: str, loaded: Callable[[str], mh.Model]) -> None:
    model = loaded(name)
    assert model.backend.layouts[0] == PREFERRED
    assert model.backend.layout == PREFERRED
    assert "layout" not in model.provenance()


@only_on_4
@pytest.mark.parametrize("name", few(SHARED, "gpt-oss", "opt"))
def test_copies_share_rows_on_all_families_that_allow_it(name: str, family: Callable[[str], Path]) -> None:
    assert mh.load(family(name)).backend.layout == "queries"


@only_on_4
@pytest.mark.parametrize("name", few(WHOLE, "bloom"))
def test_whole_rows_are_said_with_what_they_cost(name: str, family: Callable[[str], Path]) -> None:
    model = mh.load(family(name))
    prompts = mh.Prompts([[5, 40, 17, 88, 23, 141, 9, 66]], answer=[20])
    effect = mh.ablate(model, prompts, metric=mh.log_prob, heads="L0H0")
    assert "computed from its first token on" in effect.provenance["layout"]
    plan = mh.plan(model, prompts, intervention=mh.Zero(), positions=[7])
    assert (plan.layout, plan.times) == ("whole", 8)  # 8 tokens in place of the last one
    assert "cannot be resumed from cached keys: about 8 times the work" in repr(plan)
