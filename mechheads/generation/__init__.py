"""Text that a model writes, and how likely it finds given text, with heads on or off."""

from mechheads.generation.continuations import Continuation, continuation_log_probs
from mechheads.generation.generate import Generated, generate, sample_texts
from mechheads.generation.sampling import Sampling

__all__ = ["Continuation", "Generated", "Sampling", "continuation_log_probs", "generate", "sample_texts"]
