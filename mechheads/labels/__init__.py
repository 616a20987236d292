"""What a head does: relations, their scores from weights and in context, and the categories these give."""

from mechheads.labels.agreement import score_correlations
from mechheads.labels.classify import label_heads
from mechheads.labels.dynamic import dynamic_scores
from mechheads.labels.head_labels import HeadLabels
from mechheads.labels.relations import CATEGORIES, Relation, load_relations, relation_names
from mechheads.labels.static import relation_scores
from mechheads.labels.words import WordList

__all__ = [
    "CATEGORIES",
    "HeadLabels",
    "Relation",
    "WordList",
    "dynamic_scores",
    "label_heads",
    "load_relations",
    "relation_names",
    "relation_scores",
    "score_correlations",
]
