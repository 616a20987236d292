"""What the tests of sources share: an empty cache directory, and a tiny llama as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.tiny_gguf import write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory."""
    monkeypatch.setenv("MECHHEADS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_gguf(tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(tiny("llama"), path)
    return path
