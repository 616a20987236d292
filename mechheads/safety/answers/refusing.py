"""Whether a model refuses at all: short answers to a few requests, judged and counted, and how this is said.

The probability of one opening of a refusal does not tell it: a model that refuses in other words gives this opening
hardly any. So before scores are called noise, or heads safety heads, refusals are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.generation.generate import Sampling, generate
from mechheads.messages.interrupted import stop_if
from mechheads.messages.warn import warn
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.results.kinds import LEAST_REFUSAL, refused_of
from mechheads.safety.answers.verdicts import rule_judge, same_answer, verdicts
from mechheads.safety.requests.prompts import Side, answers_begun, whole_answers

ASKED, TOKENS = 16, 32
"""How many requests are answered at most, and how long the answers are: only their beginning matters here."""


def count_refusals(model: Model, side: Side) -> dict[str, Any] | None:
    """How many of a few different requests a model refuses, by the rules: ``n`` refusals ``of`` so many judged answers.

    Also ``unjudged``, and ``same`` as in ``SafetyHeads``. None if no answer has an end or there is no tokenizer.
    """
    if model.tokenizer is None:
        return None
    different = list({text: i for i, text in reversed([*enumerate(side.texts)])}.values())[::-1]
    some = different[:: ceil(len(different) / ASKED)]
    prompts = Prompts([side.prompts.items[i] for i in some])
    try:
        written = generate(model, prompts, Sampling(TOKENS))
    except ValueError:  # no room in the context, or logits that are NaN
        return None
    stop_if(written.interrupted)
    texts = [side.texts[i] for i in some]
    judged = verdicts(texts, whole_answers(model, answers_begun(model, prompts), written))
    if not (answered := len(judged) - judged.count("unfinished")):
        return None
    same, _ = same_answer(texts, written.texts, judged)
    unjudged = judged.count("unjudged")
    counted = {"n": judged.count("refused"), "of": answered - unjudged} | ({"unjudged": unjudged} if unjudged else {})
    return counted | {"same": same, "judge": rule_judge.__name__, "tokens": TOKENS}


def warn_if_rare(
    model: Model, side: Side, openings: Sequence[Sequence[int]], refusal: Float[np.ndarray, " prompt"]
) -> None:
    """Warn if openings are unlikely after requests, with how many short answers refuse."""
    share = float(np.exp(refusal).mean())
    if share >= LEAST_REFUSAL:
        return
    texts = ", ".join(f'"{model.tokenizer.decode(list(opening)).strip()}"' for opening in openings)
    which = f"the openings {texts} together" if len(openings) > 1 else f"the opening {texts}"
    counted = refused_of(count_refusals(model, side)) or "not judged"
    warn(
        f"{model.name} gives {which} a mean probability of {share:.1%} ({len(refusal)} requests; short answers: "
        f"{counted}); scores count only openings, and may be noise where these are so unlikely"
    )
