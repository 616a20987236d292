"""Which of the two releases of TransformerLens this environment has."""

from __future__ import annotations

import importlib.metadata

import pytest

TRANSFORMERLENS_4 = int(importlib.metadata.version("transformer-lens").split(".")[0]) >= 4

only_on_4 = pytest.mark.skipif(not TRANSFORMERLENS_4, reason="TransformerLens 3.9 has no such model or function")
only_on_3 = pytest.mark.skipif(TRANSFORMERLENS_4, reason="TransformerLens 4 has no HookedTransformer")
