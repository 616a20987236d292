"""What heads do on ordinary text, and what a model's answer consists of."""

from mechheads.behaviour.examples import head_examples
from mechheads.behaviour.head_examples import HeadExamples
from mechheads.behaviour.head_profile import HeadProfile
from mechheads.behaviour.logit_attribution import logit_attribution
from mechheads.behaviour.profile import profile_heads
from mechheads.behaviour.repeated import repeated_tokens

__all__ = [
    "HeadExamples",
    "HeadProfile",
    "head_examples",
    "logit_attribution",
    "profile_heads",
    "repeated_tokens",
]
