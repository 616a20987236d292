"""Whether a model refuses at all: short answers to a few requests, judged and counted, and how this is said.

The probability of one opening of a refusal does not tell it: a model that refuses in other words gives this opening
hardly any. So before scores are called noise, or heads safety heads, refusals are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.generation.generate import Sampling, generate
from mechheads.messages.interrupted import stop_if
from mechheads.messages.warn import warn
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.results.bounded import LEAST_OF_BOUNDED
from mechheads.results.refused import LEAST_REFUSAL, refused_of, refuses
from mechheads.results.stats import share_interval
from mechheads.safety.answers.verdicts import judged_by, rule_judge, same_answer, verdicts
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


def refusing(refused: Mapping[str, Any] | None) -> str:
    """How many requests a model refused, by ``count_refusals``, for a sentence; empty if it was not judged."""
    if refused is None or not refused["of"]:
        return refused_of(refused)
    n, of = refused["n"], refused["of"]
    low, high = share_interval(np.array(n / of), np.array(of))
    share = (
        f"{n / of:.0%} [{low:.0%}, {high:.0%}]" if of >= LEAST_OF_BOUNDED else f"{n / of:.0%}, too few for an interval"
    )
    same = f" and gave the same answer to {refused['same']}" if refused.get("same") else ""
    judged = judged_by(refused["judge"], ["refused"])
    return f"{refused_of(refused)}{same} ({share}, {judged})"


def openings_told(openings: Sequence[str], refusal: Float[np.ndarray, " prompt"]) -> str:
    """How likely openings of refusals are after requests, by their log-probability after each, for a warning."""
    share, n = float(np.exp(refusal).mean()), len(refusal)
    listed = ", ".join(f'"{opening}"' for opening in openings)
    which = f"the opening {listed}" if len(openings) == 1 else f"the openings {listed} together"
    return f"gives {which} a mean probability of {share:.1%} ({n} request{'s' * (n > 1)})"


def warn_if_rare(
    model: Model, side: Side, openings: Sequence[Sequence[int]], refusal: Float[np.ndarray, " prompt"]
) -> None:
    """Warn if openings are unlikely after requests, and say whether the model refuses in other words."""
    if float(np.exp(refusal).mean()) >= LEAST_REFUSAL:
        return
    counted = count_refusals(model, side)
    told = f"in short answers it {refusing(counted)}: "
    if refuses(counted) is None and counted is not None:
        told += "these scores count only the openings, so they may be noise"
    elif counted is None:
        told = "whether it refuses in other words was not judged, so the scores may be noise"
    elif refuses(counted):
        told += "refusals in other words, which these scores do not count, may depend on other heads"
    else:
        told += "there is hardly any refusal that a head could contribute to, so the scores are mostly noise"
    texts = [model.tokenizer.decode(list(opening)).strip() for opening in openings]
    warn(f"{model.name} {openings_told(texts, refusal)}; {told}")
