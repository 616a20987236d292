"""What heads do on ordinary text and by their weights, and what a model's answer consists of."""

from mechheads.behaviour.attention_attribution import AttentionAttribution, attention_attribution
from mechheads.behaviour.circuits import copying_scores, head_directions
from mechheads.behaviour.composition import composition_scores
from mechheads.behaviour.examples import HeadExamples, head_examples
from mechheads.behaviour.logit_attribution import logit_attribution
from mechheads.behaviour.profile import HeadProfile, profile_heads
from mechheads.behaviour.windows import default_texts, repeated_tokens

__all__ = [
    "AttentionAttribution",
    "HeadExamples",
    "HeadProfile",
    "attention_attribution",
    "composition_scores",
    "copying_scores",
    "default_texts",
    "head_directions",
    "head_examples",
    "logit_attribution",
    "profile_heads",
    "repeated_tokens",
]
