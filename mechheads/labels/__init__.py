"""Labels of heads: relations, their scores from weights and in context, and the categories that follow from them."""

from mechheads.labels.causal import CausalEvidence, relation_evidence
from mechheads.labels.classify import HeadLabels, label_heads
from mechheads.labels.dynamic import dynamic_scores
from mechheads.labels.few_shot import few_shot_pairs, few_shot_prompts
from mechheads.labels.relations import CATEGORIES, Relation, WordList, load_relations, relation_names
from mechheads.labels.removal import cumulative_removal
from mechheads.labels.salient import salient_operations
from mechheads.labels.static import relation_scores

__all__ = [
    "CATEGORIES",
    "CausalEvidence",
    "HeadLabels",
    "Relation",
    "WordList",
    "cumulative_removal",
    "dynamic_scores",
    "few_shot_pairs",
    "few_shot_prompts",
    "label_heads",
    "load_relations",
    "relation_evidence",
    "relation_names",
    "relation_scores",
    "salient_operations",
]
