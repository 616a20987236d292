"""HookedTransformer, which only TransformerLens 3.9 has, gives the numbers of TransformerBridge in every analysis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mechheads as mh
from support.every_analysis import ANALYSES, MORE, assert_same_numbers
from support.releases import only_on_3

pytestmark = only_on_3


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def both(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> tuple[mh.Model, mh.Model]:
    folder = tiny(request.param)
    return mh.load(folder, backend="hooked"), mh.load(folder, backend="bridge")


@pytest.mark.parametrize("analysis", [*ANALYSES, *MORE])
def test_every_analysis_gives_the_numbers_of_the_bridge(analysis: str, both: tuple[mh.Model, mh.Model]) -> None:
    assert_same_numbers(analysis, both, 2e-4)
