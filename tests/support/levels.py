"""Which parameters of a test are always run, and which before a release only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *always: Any) -> list[Any]:
    """All values as parameters, of which only those in ``always`` are always run; the others are ``release``."""
    return [value if value in always else pytest.param(value, marks=pytest.mark.release) for value in values]


def architectures(*names: str) -> list[Any]:
    """Tiny models as parameters: the first two are always run, the others before a release."""
    return few(names, *names[:2])


TWO_FIRST = architectures("gpt2", "llama", "neox", "gemma")
ONE_FIRST = few(("llama", "gpt2", "neox", "gemma"), "llama")
"""Four kinds of models, of which two or one are always run. A file imports them as ``ARCHITECTURES`` for ``small``."""
on_two = pytest.mark.parametrize("small", TWO_FIRST, indirect=True, scope="module")
"""For a test that always runs on two of them in a file whose other tests run on one."""
