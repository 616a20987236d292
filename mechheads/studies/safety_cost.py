"""How much the study of refusals measures, and about how long it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

from mechheads.engine.sweep import timed_plan
from mechheads.generation.generate import generate
from mechheads.interventions.basic import UniformAttention
from mechheads.safety.heads.ablations import PAPER_KINDS
from mechheads.safety.requests.openings import ANSWER_TOKENS, ASKED, DRAWN
from mechheads.safety.requests.prompts import request_prompts

if TYPE_CHECKING:
    from mechheads.model.model import Model
    from mechheads.prompts.prompts import Prompts

_OPENINGS, _PASSES = 5, 6
"""Openings that Refusal attribution usually asks for, and what it takes for each, in forward passes of the requests."""
_PROBED, _PROBED_TOKENS = 80, 4
"""Answers, and tokens after the first, that are written for the estimate. Fewer answers at once take longer each."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured: every n-th request, tokens of an answer, random draws, and points of the curve."""

    ranked_every: int = 3
    tested_every: int = 1
    tokens: int = 20
    draws: int = 2
    draws_of_any: int = 3
    curve: tuple[int, ...] = (1, 3)
    draws_of_curve: int = 1

    def answers(self, harmful: int, harmless: int, sets: int) -> int:
        """How many answers are written, for so many requests of each kind and sets of heads."""
        both, points = harmful + harmless, 1 + (1 + len(self.curve)) * (1 + self.draws_of_curve)
        return (
            both * (1 + self.draws_of_any) + both * (1 + sets * (1 + self.draws)) + (harmful + harmless // 4) * points
        )


FULL = Sizes()
QUICK = Sizes(ranked_every=6, tested_every=3, tokens=12, draws=1, draws_of_any=2, curve=(1,), draws_of_curve=1)


def study_seconds(
    model: Model,
    sizes: Sizes,
    ranked_on: Sequence[str],
    tested_on: tuple[Sequence[str], Sequence[str]],
    group_size: int,
) -> float:
    """How many seconds the study takes in this process, from a few heads and a few answers.

    Args:
        ranked_on: the harmful requests that rank heads.
        tested_on: the harmful and the harmless requests that are answered.
        group_size: how many heads are ablated as one.
    """
    harmful, harmless = tested_on
    asked = request_prompts(model, ranked_on)
    sweep = timed_plan(model, asked, intervention=UniformAttention()).seconds or 0.0
    asked_again = list(islice(cycle([*harmful, *harmless]), _PROBED))
    some = request_prompts(model, asked_again, "chat" if model.chat_template else "query")
    one, several = (_seconds(model, some, tokens) / len(some) for tokens in (1, 1 + _PROBED_TOKENS))
    each = max(several - one, 0.0) / _PROBED_TOKENS
    drawn = DRAWN * min(ASKED, len(ranked_on))
    attribution = _PASSES * _OPENINGS * len(ranked_on) * one + drawn * (one + each * ANSWER_TOKENS)
    ships = len(PAPER_KINDS) * sweep / group_size
    answers = sizes.answers(len(harmful), len(harmless), len(PAPER_KINDS) + 3)
    return attribution + ships + answers * (one + each * (sizes.tokens - 1))


def _seconds(model: Model, prompts: Prompts, tokens: int) -> float:
    """How long it takes to write so many tokens after each prompt."""
    start = time.perf_counter()
    generate(model, prompts, tokens, progress=False)
    return time.perf_counter() - start
