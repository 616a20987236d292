"""What a head does: relations, their scores from weights, and the categories these give."""

from mechheads.labels.classify import HeadLabels, label_heads
from mechheads.labels.relations import CATEGORIES, Relation, load_relations, relation_names
from mechheads.labels.static import relation_scores

__all__ = [
    "CATEGORIES",
    "HeadLabels",
    "Relation",
    "label_heads",
    "load_relations",
    "relation_names",
    "relation_scores",
]
