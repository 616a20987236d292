"""What the tests of the explorer share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.studies.atlas import Atlas
from support.whole_atlas import whole_atlas


@pytest.fixture(scope="session")
def atlas(tiny: Callable[[str], Path]) -> Atlas:
    """An atlas with every part. Leave it as it is."""
    return whole_atlas(mh.load(tiny("llama")))
