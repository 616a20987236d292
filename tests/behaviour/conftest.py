"""What the tests of several analyses share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mechheads as mh
from support.levels import few


@pytest.fixture(scope="module", params=few(("llama", "gpt2", "gemma", "neox"), "llama"))
def small(request: pytest.FixtureRequest, loaded: Callable[[str], mh.Model]) -> mh.Model:
    return loaded(request.param)
