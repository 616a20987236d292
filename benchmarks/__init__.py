"""Measurements of the engine against other tools: ``python -m benchmarks``."""
