"""What heads do on ordinary text and by their weights, and what a model's answer consists of."""

from mechheads.behaviour.circuits import copying_scores, head_directions
from mechheads.behaviour.composition import composition_scores
from mechheads.behaviour.examples import HeadExamples, head_examples
from mechheads.behaviour.logit_attribution import logit_attribution
from mechheads.behaviour.profile import HeadProfile, profile_heads
from mechheads.behaviour.recipes.copy_suppression import copy_suppression
from mechheads.behaviour.recipes.function_vectors import function_vector, function_vector_heads
from mechheads.behaviour.recipes.indirect_object_roles import (
    IndirectObjectRoles,
    indirect_object_pairs,
    indirect_object_roles,
)
from mechheads.behaviour.recipes.retrieval import retrieval_heads
from mechheads.behaviour.recipes.successors import successor_scores
from mechheads.behaviour.windows import repeated_tokens

__all__ = [
    "HeadExamples",
    "HeadProfile",
    "IndirectObjectRoles",
    "composition_scores",
    "copy_suppression",
    "copying_scores",
    "function_vector",
    "function_vector_heads",
    "head_directions",
    "head_examples",
    "indirect_object_pairs",
    "indirect_object_roles",
    "logit_attribution",
    "profile_heads",
    "repeated_tokens",
    "retrieval_heads",
    "successor_scores",
]
