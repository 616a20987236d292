"""Figures of head scores and attention patterns, as plotly figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechheads.plots.agreement import static_dynamic
    from mechheads.plots.categories import category_map
    from mechheads.plots.curves import role_curves, role_map
    from mechheads.plots.effects import effect_scatter
    from mechheads.plots.heads import heatmap
    from mechheads.plots.paths import path_matrix
    from mechheads.plots.patterns import attention
    from mechheads.plots.refusal import refusal_curve
    from mechheads.plots.removal import removal_curves
    from mechheads.plots.safety import safety_grid, safety_map
    from mechheads.plots.views import view_agreement

_HOME = {
    "attention": "patterns",
    "category_map": "categories",
    "effect_scatter": "effects",
    "heatmap": "heads",
    "path_matrix": "paths",
    "refusal_curve": "refusal",
    "removal_curves": "removal",
    "role_curves": "curves",
    "role_map": "curves",
    "safety_grid": "safety",
    "safety_map": "safety",
    "static_dynamic": "agreement",
    "view_agreement": "views",
}

__all__ = [
    "attention",
    "category_map",
    "effect_scatter",
    "heatmap",
    "path_matrix",
    "refusal_curve",
    "removal_curves",
    "role_curves",
    "role_map",
    "safety_grid",
    "safety_map",
    "static_dynamic",
    "view_agreement",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"mechheads.plots.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
