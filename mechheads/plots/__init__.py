"""Plotly figures of head scores, curves and attention patterns."""

from mechheads.plots.attention import attention
from mechheads.plots.category_map import category_map
from mechheads.plots.circuit_curve import circuit_curve
from mechheads.plots.heatmap import heatmap, path_matrix, view_agreement
from mechheads.plots.refusal_curve import refusal_curve
from mechheads.plots.relation_scatter import effect_scatter, static_dynamic
from mechheads.plots.removal_curves import removal_curves
from mechheads.plots.role_curves import role_curves, role_map
from mechheads.plots.safety_map import safety_grid, safety_map
from mechheads.plots.saving import save

__all__ = [
    "attention",
    "category_map",
    "circuit_curve",
    "effect_scatter",
    "heatmap",
    "path_matrix",
    "refusal_curve",
    "removal_curves",
    "role_curves",
    "role_map",
    "safety_grid",
    "safety_map",
    "save",
    "static_dynamic",
    "view_agreement",
]
