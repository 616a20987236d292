"""Which side of the pairs is patched."""

from __future__ import annotations

from typing import Literal

from mechheads.prompts.prompts import PromptPairs


def check_pairs(pairs: object, analysis: str) -> None:
    """Check that an analysis is given pairs.

    Raises:
        ValueError: if it is given anything else.
    """
    if not isinstance(pairs, PromptPairs):
        raise ValueError(f"pairs is a {type(pairs).__name__}; {analysis} needs mh.PromptPairs")


def base_of(direction: str) -> Literal["clean", "corrupted"]:
    """The side that is patched.

    Raises:
        ValueError: if there is no such direction.
    """
    if direction not in ("denoising", "noising"):
        raise ValueError(f'direction is {direction!r}; choose "denoising" or "noising"')
    return "corrupted" if direction == "denoising" else "clean"
