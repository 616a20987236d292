"""Patching experiments: activations of one run replaced by values of another, or ablated."""

from mechheads.engine.job import Job, prepare
from mechheads.engine.plan import Plan
from mechheads.engine.sweep import plan, sweep
from mechheads.interventions.basic import Context, Mean, MeanOf, Patch, Resample, Scale, UniformAttention, Zero
from mechheads.limits import Limits
from mechheads.messages.habits import advice
from mechheads.metrics import accuracy, attention_to, kl_divergence, log_prob, logit_diff, metric
from mechheads.patching.activation import ablate, activation_patch
from mechheads.patching.attribution import attribution_patch
from mechheads.patching.circuits import Faithfulness, SetScores, faithfulness, patch_sets
from mechheads.patching.path import path_matrix, path_patch
from mechheads.results.agreement import side_by_side
from mechheads.results.tables import Curves
from mechheads.runs.head_cache import HeadCache

__all__ = [
    "Context",
    "Curves",
    "Faithfulness",
    "HeadCache",
    "Job",
    "Limits",
    "Mean",
    "MeanOf",
    "Patch",
    "Plan",
    "Resample",
    "Scale",
    "SetScores",
    "UniformAttention",
    "Zero",
    "ablate",
    "accuracy",
    "activation_patch",
    "attention_to",
    "attribution_patch",
    "faithfulness",
    "kl_divergence",
    "log_prob",
    "logit_diff",
    "metric",
    "patch_sets",
    "path_matrix",
    "path_patch",
    "plan",
    "prepare",
    "side_by_side",
    "sweep",
]


def __getattr__(name: str) -> object:
    raise AttributeError(f"module 'mechheads.patching' has no attribute {name!r}{advice('mh.patching', name)}")
