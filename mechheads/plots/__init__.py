"""Plotly figures of head scores, curves and attention patterns."""

from mechheads.plots.attention import attention
from mechheads.plots.category_map import category_map
from mechheads.plots.curves import curves
from mechheads.plots.heatmap import heatmap, pair_map, path_map, role_map
from mechheads.plots.parts import save
from mechheads.plots.safety_map import safety_grid, safety_map

__all__ = [
    "attention",
    "category_map",
    "curves",
    "heatmap",
    "pair_map",
    "path_map",
    "role_map",
    "safety_grid",
    "safety_map",
    "save",
]
