"""Which tiny models a test runs on."""

from __future__ import annotations

from typing import Any

import pytest


def architectures(*names: str) -> list[Any]:
    """Parameters of a test or fixture: the first two are always run, the others before a release."""
    return [*names[:2], *(pytest.param(name, marks=pytest.mark.release) for name in names[2:])]
