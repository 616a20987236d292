"""The input of a model: prompts, pairs of prompts, and their tokens."""
