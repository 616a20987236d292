"""What the tests of gates and roles share."""

from __future__ import annotations

import pytest

import mechheads as mh
from support import gated_micro


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    return gated_micro.build(tmp_path_factory.mktemp("micro") / "model")
