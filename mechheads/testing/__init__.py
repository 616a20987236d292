"""Tests of your own interventions and metrics, models whose heads are known, and checks of exercises.

>>> from mechheads.testing import check_intervention, check_metric
>>> check_intervention(mh.patching.Scale(0.5)).passed and check_metric(mh.log_prob).passed
True
"""

from __future__ import annotations

from mechheads.testing.checks import Check, CheckFailed, Report, check_answer, check_intervention, check_metric
from mechheads.testing.known import KnownModel, KnownNode, behaving_model, compiled_model, trained_model

__all__ = [
    "Check",
    "CheckFailed",
    "KnownModel",
    "KnownNode",
    "Report",
    "behaving_model",
    "check_answer",
    "check_intervention",
    "check_metric",
    "compiled_model",
    "trained_model",
]
