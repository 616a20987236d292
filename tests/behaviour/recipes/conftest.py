"""What the tests of several recipes share."""

from __future__ import annotations

import pytest

from mechheads.behaviour.recipes import retrieval


@pytest.fixture
def short_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of few tokens: the context of the tiny models holds 64."""
    monkeypatch.setattr(retrieval, "QUESTION", "{question}")
