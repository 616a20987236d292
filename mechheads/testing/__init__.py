"""Checks for interventions and metrics of your own: what the engine takes for granted, tried out.

>>> from mechheads.testing import check_intervention, check_metric
>>> check_intervention(mh.Scale(0.5)).passed and check_metric(mh.log_prob).passed
True
"""

from __future__ import annotations

from mechheads.testing.checks import Check, CheckFailed, Report, check_intervention, check_metric

__all__ = ["Check", "CheckFailed", "Report", "check_intervention", "check_metric"]
