"""Which tiny models a test runs on."""

from __future__ import annotations

from typing import Any

import pytest


def architectures(*names: str) -> list[Any]:
    """Parameters of a test or fixture: the first two belong to the fast subset, the others are ``slow``."""
    return [*names[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in names[2:])]
