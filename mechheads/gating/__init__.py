"""Gating: gates on heads fitted to a task, roles of heads from the gates, and curves that test the roles."""

from mechheads.gating.fit.arguments import FitSettings
from mechheads.gating.fit.contrast import contrast_gates
from mechheads.gating.fit.fit import LossNotFinite, fit_gates
from mechheads.gating.fit.fitted import Gates
from mechheads.gating.fit.gates import task_log_prob
from mechheads.gating.roles.effects import ablation_effects
from mechheads.gating.roles.role_curves import role_curve
from mechheads.gating.roles.roles import ROLES, Roles, head_roles
from mechheads.gating.tasks.load_task import load_task
from mechheads.gating.tasks.published import blimp, commonsense_qa, gsm8k
from mechheads.gating.tasks.task import Task, TaskTokens

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
