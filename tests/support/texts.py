"""Prompts and pairs of words of which the tiny models know every word."""

from __future__ import annotations

import mechheads as mh

CLEAN = [" The capital of France is", " The capital of Spain is the big", " When John and Mary went to the"]
CORRUPTED = [" The capital of Italy is", " The capital of Germany is the small", " When Mary and John gave to the"]
PAIRS = mh.PromptPairs(CLEAN, CORRUPTED, answer=[" Paris", " Madrid", " store"], wrong=[" Rome", " Berlin", " book"])
"""Pairs of different lengths."""
CAPITALS_CLEAN = [" The capital of France is", " The capital of Spain is the big"]
CAPITALS_CORRUPTED = [" The capital of Italy is", " The capital of Germany is the small"]
CAPITALS_PAIRS = mh.PromptPairs(
    CAPITALS_CLEAN, CAPITALS_CORRUPTED, answer=[" Paris", " Madrid"], wrong=[" Rome", " Berlin"]
)
"""Two pairs of different lengths, about capitals alone."""

CAPITALS = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin")]
WORD_PAIRS = [
    *CAPITALS,
    ("big", "bigger"),
    ("small", "smaller"),
    ("dog", "cat"),
    ("one", "two"),
    ("John", "Mary"),
    ("yes", "no"),
]
