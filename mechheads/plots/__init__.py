"""Plotly figures of head scores, curves and attention patterns."""

from mechheads.plots.attention import attention
from mechheads.plots.category_map import category_map
from mechheads.plots.curves import curves
from mechheads.plots.effect_scatter import effect_scatter
from mechheads.plots.heatmap import heatmap, role_map
from mechheads.plots.path_matrix import path_matrix
from mechheads.plots.safety_map import safety_grid, safety_map
from mechheads.plots.saving import save
from mechheads.plots.static_dynamic import static_dynamic
from mechheads.plots.view_agreement import view_agreement

__all__ = [
    "attention",
    "category_map",
    "curves",
    "effect_scatter",
    "heatmap",
    "path_matrix",
    "role_map",
    "safety_grid",
    "safety_map",
    "save",
    "static_dynamic",
    "view_agreement",
]
