"""A check of your own interventions and metrics, models whose heads are known, and checks of exercises.

>>> mh.testing.check(mh.patching.Scale(0.5)).of
'Scale(factor=0.5)'
"""

from __future__ import annotations

from mechheads.testing.check import CheckFailed, Report, check, check_answer
from mechheads.testing.known import KnownModel, KnownNode, behaving_model, compiled_model, trained_model

__all__ = [
    "CheckFailed",
    "KnownModel",
    "KnownNode",
    "Report",
    "behaving_model",
    "check",
    "check_answer",
    "compiled_model",
    "trained_model",
]
