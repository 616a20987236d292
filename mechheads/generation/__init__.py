"""Text that a model writes, with heads on or off."""

from mechheads.generation.generate import Generated, Sampling, generate

__all__ = ["Generated", "Sampling", "generate"]
