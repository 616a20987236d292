"""What the tests of several recipes share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mechheads as mh
from mechheads.behaviour.recipes import retrieval
from support.levels import few


@pytest.fixture(scope="module", params=few(("llama", "gpt2", "gemma", "neox"), "llama"))
def small(request: pytest.FixtureRequest, loaded: Callable[[str], mh.Model]) -> mh.Model:
    return loaded(request.param)


@pytest.fixture
def short_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of few tokens: the context of the tiny models holds 64."""
    monkeypatch.setattr(retrieval, "QUESTION", "{question}")
