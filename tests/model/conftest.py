"""What the tests of models share: tiny models of many architectures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.tiny_families import build


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of ``benchmarks``, by name."""

    @cache
    def folder(name: str) -> Path:
        made = tmp_path_factory.mktemp("family") / name
        build(name, made)
        return made

    return folder
