"""Which side of the pairs is patched."""

from __future__ import annotations

from typing import Literal

from mechheads.prompts.prompts import PromptPairs, Side

Direction = Literal["denoising", "noising"]


def check_pairs(pairs: object, analysis: str) -> None:
    """Check that an analysis is given pairs.

    Raises:
        ValueError: if it is given anything else.
    """
    if not isinstance(pairs, PromptPairs):
        raise ValueError(f"pairs is a {type(pairs).__name__}; {analysis} needs mh.PromptPairs")


def base_of(direction: Direction) -> Side:
    """The side that is patched."""
    return "corrupted" if direction == "denoising" else "clean"
