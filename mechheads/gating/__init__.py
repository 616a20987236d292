"""Gating: gates on heads that are fitted to a task, roles of heads from the gates, and curves that test the roles."""

from mechheads.gating.fit import contrast_gates, fit_gates
from mechheads.gating.fitted import FitSettings, Gates
from mechheads.gating.gates import task_log_prob
from mechheads.gating.role_curves import role_curve
from mechheads.gating.roles import ROLES, Roles, ablation_effects, head_roles
from mechheads.gating.task import Task, TaskTokens
from mechheads.gating.tasks import blimp, commonsense_qa, gsm8k, load_task

__all__ = [
    "ROLES",
    "FitSettings",
    "Gates",
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
