"""Whether MLPs can be changed beside the heads."""

from __future__ import annotations

from mechheads.interventions.base import Intervention, site_of
from mechheads.interventions.basic import Mean, Patch, Resample, Scale, Zero
from mechheads.metrics.base import name_of
from mechheads.model.model import Model

_ALLOWED = (Patch, Zero, Mean, Resample, Scale)
"""The interventions whose rule does not need a head."""


def check_mlps(model: Model, intervention: Intervention) -> None:
    """Check that a model has MLPs, and that an intervention can change them.

    Raises:
        ValueError: if it has none, or the request cannot be met.
    """
    if not model.has_mlps:
        raise ValueError(f'nodes="all": model {model.name!r} has no MLPs; leave nodes out')
    if (site := site_of(intervention)) != "z":
        raise ValueError(f'nodes="all": an MLP has no {site}; use site="z", or leave nodes out')
    if not isinstance(intervention, _ALLOWED):
        raise ValueError(
            f'nodes="all": intervention {name_of(intervention)} is a rule for heads; for MLPs use mh.Patch(), '
            "mh.Zero(), mh.Mean(), mh.patching.Resample() or mh.patching.Scale(...)"
        )
