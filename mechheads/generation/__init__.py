"""Text that a model writes, and how likely it finds given text, with heads on or off."""

from mechheads.generation.continuations import Continuation, continuation_log_probs
from mechheads.generation.generate import Generated, Sampling, generate, sample_texts

__all__ = ["Continuation", "Generated", "Sampling", "continuation_log_probs", "generate", "sample_texts"]
