"""What heads do on ordinary text, and the parts of logits and of attention scores."""

from mechheads.behaviour.attention_attribution import AttentionAttribution, attention_attribution
from mechheads.behaviour.examples import HeadExamples, head_examples
from mechheads.behaviour.logit_attribution import logit_attribution
from mechheads.behaviour.profile import HeadProfile, profile_heads
from mechheads.behaviour.programs import AttentionProgram, ProgramTest, test_program
from mechheads.behaviour.retrieval import needle_prompts, retrieval_heads
from mechheads.behaviour.windows import default_texts, repeated_tokens

__all__ = [
    "AttentionAttribution",
    "AttentionProgram",
    "HeadExamples",
    "HeadProfile",
    "ProgramTest",
    "attention_attribution",
    "default_texts",
    "head_examples",
    "logit_attribution",
    "needle_prompts",
    "profile_heads",
    "repeated_tokens",
    "retrieval_heads",
    "test_program",
]
