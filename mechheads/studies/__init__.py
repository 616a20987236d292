"""Several analyses of one model in one table and one page."""

from mechheads.studies.answers import Question
from mechheads.studies.atlas import Atlas
from mechheads.studies.build import build_atlas
from mechheads.studies.figures import Recipe, load_recipe, recipe_figure
from mechheads.studies.figures.categories import categories_figure
from mechheads.studies.figures.panels import PaperFigure
from mechheads.studies.figures.roles import roles_figure
from mechheads.studies.figures.safety import safety_figure

__all__ = [
    "Atlas",
    "PaperFigure",
    "Question",
    "Recipe",
    "build_atlas",
    "categories_figure",
    "load_recipe",
    "recipe_figure",
    "roles_figure",
    "safety_figure",
]
