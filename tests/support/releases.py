"""Which of the two releases of TransformerLens this environment has."""

from __future__ import annotations

import importlib.metadata

import pytest

TRANSFORMERLENS_4 = int(importlib.metadata.version("transformer-lens").split(".")[0]) >= 4

only_on_4 = pytest.mark.needs(TRANSFORMERLENS_4, "TransformerLens 4")
only_on_3 = pytest.mark.needs(not TRANSFORMERLENS_4, "TransformerLens 3.9, which has HookedTransformer")
