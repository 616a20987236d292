"""Gating: gates on heads fitted to a task, roles of heads from the gates, and curves that test the roles."""

from mechheads.gating.contrast import contrast_gates
from mechheads.gating.fit import LossNotFinite, fit_gates
from mechheads.gating.fitted import FitSettings, Gates
from mechheads.gating.gates import task_log_prob
from mechheads.gating.published import blimp, commonsense_qa, gsm8k
from mechheads.gating.role_curves import role_curve
from mechheads.gating.roles import ROLES, Roles, ablation_effects, head_roles
from mechheads.gating.shipped import load_task
from mechheads.gating.task import Task, TaskTokens

__all__ = [
    "ROLES",
    "FitSettings",
    "Gates",
    "LossNotFinite",
    "Roles",
    "Task",
    "TaskTokens",
    "ablation_effects",
    "blimp",
    "commonsense_qa",
    "contrast_gates",
    "fit_gates",
    "gsm8k",
    "head_roles",
    "load_task",
    "role_curve",
    "task_log_prob",
]
