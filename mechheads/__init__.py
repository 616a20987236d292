"""mechheads tells what every attention head of a language model does, how strongly, and how sure we are.

>>> import mechheads as mh
>>> model = mh.load()
>>> run = model.cache(["The capital of France is"])

The verbs that most work begins with are here; everything else is in ``mh.patching``, ``mh.behaviour``,
``mh.generation``, ``mh.labels``, ``mh.safety``, ``mh.gating``, ``mh.plots``, ``mh.scale``, ``mh.studies`` and
``mh.testing``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mechheads._version import __version__ as __version__

if TYPE_CHECKING:
    from mechheads import (
        behaviour as behaviour,
        gating as gating,
        generation as generation,
        labels as labels,
        patching as patching,
        plots as plots,
        safety as safety,
        scale as scale,
        studies as studies,
        testing as testing,
    )
    from mechheads.behaviour.profile import profile_heads as profile_heads
    from mechheads.engine.job import prepare as prepare
    from mechheads.engine.sweep import plan as plan, sweep as sweep
    from mechheads.explorer.explore import explore as explore, head_card as head_card
    from mechheads.gating.fit import fit_gates as fit_gates
    from mechheads.gating.gates import task_log_prob as task_log_prob
    from mechheads.gating.roles import head_roles as head_roles
    from mechheads.gating.task import Task as Task
    from mechheads.generation.generate import generate as generate
    from mechheads.heads import HeadId as HeadId
    from mechheads.interventions.basic import Mean as Mean, Patch as Patch, Zero as Zero
    from mechheads.labels.classify import label_heads as label_heads
    from mechheads.labels.relations import Relation as Relation
    from mechheads.labels.static import relation_scores as relation_scores
    from mechheads.limits import settings as settings
    from mechheads.metrics import (
        kl_divergence as kl_divergence,
        log_prob as log_prob,
        logit_diff as logit_diff,
        metric as metric,
    )
    from mechheads.model.load import load as load, wrap as wrap
    from mechheads.model.model import Model as Model
    from mechheads.patching.activation import ablate as ablate, activation_patch as activation_patch
    from mechheads.patching.path import path_matrix as path_matrix, path_patch as path_patch
    from mechheads.prompts.prompts import PromptPairs as PromptPairs, Prompts as Prompts
    from mechheads.results.scores import HeadScores as HeadScores
    from mechheads.safety.heads.safety_heads import safety_heads as safety_heads
    from mechheads.safety.heads.ships import ships as ships
    from mechheads.studies.build import build_atlas as build_atlas

_MODULES = {
    "behaviour.profile": "profile_heads",
    "engine.job": "prepare",
    "engine.sweep": "plan sweep",
    "explorer.explore": "explore head_card",
    "gating.fit": "fit_gates",
    "gating.gates": "task_log_prob",
    "gating.roles": "head_roles",
    "gating.task": "Task",
    "generation.generate": "generate",
    "heads": "HeadId",
    "interventions.basic": "Mean Patch Zero",
    "labels.classify": "label_heads",
    "labels.relations": "Relation",
    "labels.static": "relation_scores",
    "limits": "settings",
    "metrics": "kl_divergence log_prob logit_diff metric",
    "model.load": "load wrap",
    "model.model": "Model",
    "patching.activation": "ablate activation_patch",
    "patching.path": "path_matrix path_patch",
    "prompts.prompts": "PromptPairs Prompts",
    "results.scores": "HeadScores",
    "safety.heads.safety_heads": "safety_heads",
    "safety.heads.ships": "ships",
    "studies.build": "build_atlas",
}
"""The verbs of each module, which is imported when one of them is first used."""
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

_FOLDERS = ("behaviour", "gating", "generation", "labels", "patching", "plots", "safety", "scale", "studies", "testing")

__all__ = sorted([*_HOME, *_FOLDERS])


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"mechheads.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"mechheads.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    from mechheads.messages.habits import advice

    raise AttributeError(f"module 'mechheads' has no attribute {name!r}{advice('mh', name)}")


def __dir__() -> list[str]:
    return list(__all__)
