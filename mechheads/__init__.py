"""mechheads tells what every attention head of a language model does, how strongly, and how sure we are.

>>> import mechheads as mh
>>> model = mh.load()
>>> run = model.cache(["The capital of France is"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mechheads import plots as plots, testing as testing
    from mechheads.atlas import Atlas as Atlas, build_atlas as build_atlas
    from mechheads.cache import HeadCache as HeadCache
    from mechheads.gating import (
        Gates as Gates,
        RoleCurves as RoleCurves,
        Roles as Roles,
        Task as Task,
        contrast_gates as contrast_gates,
        fit_gates as fit_gates,
        head_roles as head_roles,
        role_curve as role_curve,
        task_log_prob as task_log_prob,
    )
    from mechheads.gating.comparison import ablation_effects as ablation_effects, compare_roles as compare_roles
    from mechheads.gating.task_files import read_task as read_task
    from mechheads.gating.tasks import load_task as load_task
    from mechheads.heads import HeadId as HeadId
    from mechheads.interventions import (
        Context as Context,
        Mean as Mean,
        Patch as Patch,
        Resample as Resample,
        Scale as Scale,
        UniformAttention as UniformAttention,
        Zero as Zero,
    )
    from mechheads.labels.agreement import score_correlations as score_correlations
    from mechheads.labels.causal import CausalEvidence as CausalEvidence, relation_evidence as relation_evidence
    from mechheads.labels.classify import label_heads as label_heads
    from mechheads.labels.dynamic import dynamic_scores as dynamic_scores
    from mechheads.labels.few_shot import few_shot_pairs as few_shot_pairs, few_shot_prompts as few_shot_prompts
    from mechheads.labels.head_labels import HeadLabels as HeadLabels
    from mechheads.labels.relations import Relation as Relation
    from mechheads.labels.removal import Removal as Removal, cumulative_removal as cumulative_removal
    from mechheads.labels.salient import salient_operations as salient_operations
    from mechheads.labels.static import relation_scores as relation_scores
    from mechheads.labels.words import WordList as WordList
    from mechheads.metrics import (
        accuracy as accuracy,
        kl_divergence as kl_divergence,
        log_prob as log_prob,
        logit_diff as logit_diff,
        metric as metric,
    )
    from mechheads.model import Model as Model, load as load, wrap as wrap
    from mechheads.patching.activation import (
        Screen as Screen,
        ablate as ablate,
        activation_patch as activation_patch,
    )
    from mechheads.patching.attribution import attribution_patch as attribution_patch
    from mechheads.patching.circuits import (
        Completeness as Completeness,
        Faithfulness as Faithfulness,
        completeness as completeness,
        faithfulness as faithfulness,
    )
    from mechheads.patching.minimal import Circuit as Circuit, minimal_circuit as minimal_circuit
    from mechheads.patching.path import path_matrix as path_matrix, path_patch as path_patch
    from mechheads.patching.self_repair import self_repair as self_repair
    from mechheads.patching.sets import SetScores as SetScores, patch_sets as patch_sets
    from mechheads.plans import Plan as Plan
    from mechheads.prompts import PromptPairs as PromptPairs, Prompts as Prompts
    from mechheads.report import write_page as write_page
    from mechheads.safety.contribution import refusal_contribution as refusal_contribution
    from mechheads.safety.curves import RefusalCurve as RefusalCurve, attack_curve as attack_curve
    from mechheads.safety.direction import refusal_direction as refusal_direction
    from mechheads.safety.refusal import RefusalTest as RefusalTest, refusal_test as refusal_test
    from mechheads.safety.sahara import HeadGroup as HeadGroup, sahara as sahara
    from mechheads.safety.ships import (
        SafetyHeads as SafetyHeads,
        compare_ablations as compare_ablations,
        generalized_ships as generalized_ships,
        safety_heads as safety_heads,
        ships as ships,
    )
    from mechheads.safety.study import SafetyStudy as SafetyStudy, safety_study as safety_study
    from mechheads.scores import HeadScores as HeadScores
    from mechheads.sweeps import plan as plan, sweep as sweep
    from mechheads.weights import StoredWeights as StoredWeights, open_weights as open_weights

_HOME = {
    "Atlas": "atlas",
    "build_atlas": "atlas",
    "HeadCache": "cache",
    "Gates": "gating",
    "RoleCurves": "gating",
    "Roles": "gating",
    "Task": "gating",
    "contrast_gates": "gating",
    "fit_gates": "gating",
    "head_roles": "gating",
    "role_curve": "gating",
    "task_log_prob": "gating",
    "ablation_effects": "gating.comparison",
    "compare_roles": "gating.comparison",
    "load_task": "gating.tasks",
    "read_task": "gating.task_files",
    "HeadId": "heads",
    "Context": "interventions",
    "Mean": "interventions",
    "Patch": "interventions",
    "Resample": "interventions",
    "Scale": "interventions",
    "UniformAttention": "interventions",
    "Zero": "interventions",
    "HeadLabels": "labels.head_labels",
    "dynamic_scores": "labels.dynamic",
    "label_heads": "labels.classify",
    "score_correlations": "labels.agreement",
    "CausalEvidence": "labels.causal",
    "relation_evidence": "labels.causal",
    "few_shot_pairs": "labels.few_shot",
    "few_shot_prompts": "labels.few_shot",
    "Removal": "labels.removal",
    "cumulative_removal": "labels.removal",
    "salient_operations": "labels.salient",
    "Relation": "labels.relations",
    "WordList": "labels.words",
    "relation_scores": "labels.static",
    "accuracy": "metrics",
    "kl_divergence": "metrics",
    "log_prob": "metrics",
    "logit_diff": "metrics",
    "metric": "metrics",
    "Model": "model",
    "load": "model",
    "wrap": "model",
    "Screen": "patching.activation",
    "ablate": "patching.activation",
    "activation_patch": "patching.activation",
    "attribution_patch": "patching.attribution",
    "Completeness": "patching.circuits",
    "Faithfulness": "patching.circuits",
    "completeness": "patching.circuits",
    "faithfulness": "patching.circuits",
    "Circuit": "patching.minimal",
    "minimal_circuit": "patching.minimal",
    "path_matrix": "patching.path",
    "path_patch": "patching.path",
    "self_repair": "patching.self_repair",
    "SetScores": "patching.sets",
    "patch_sets": "patching.sets",
    "Plan": "plans",
    "write_page": "report",
    "PromptPairs": "prompts",
    "Prompts": "prompts",
    "refusal_contribution": "safety.contribution",
    "RefusalCurve": "safety.curves",
    "attack_curve": "safety.curves",
    "refusal_direction": "safety.direction",
    "RefusalTest": "safety.refusal",
    "refusal_test": "safety.refusal",
    "HeadGroup": "safety.sahara",
    "sahara": "safety.sahara",
    "SafetyHeads": "safety.ships",
    "compare_ablations": "safety.ships",
    "generalized_ships": "safety.ships",
    "safety_heads": "safety.ships",
    "ships": "safety.ships",
    "SafetyStudy": "safety.study",
    "safety_study": "safety.study",
    "HeadScores": "scores",
    "plan": "sweeps",
    "sweep": "sweeps",
    "StoredWeights": "weights",
    "open_weights": "weights",
}
"""Each public name and the module it lives in; imported when first asked for."""

__all__ = sorted([*_HOME, "plots", "testing"])


def __getattr__(name: str) -> Any:
    if name in ("plots", "testing"):
        return importlib.import_module(f"mechheads.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'mechheads' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mechheads.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
