"""Every function of safety takes every intervention: a name of the table, a class of your own, a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from torch import Tensor

import mechheads as mh
from mechheads.interventions.basic import Context, InterventionName

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes", " Rome is big"]
HARMLESS = [" no", " When Mary went to the store John gave a book", " three cat", " Rome is"]
HEADS = ["L0H1", "L2H3"]
BARE: dict[str, Any] = {"template": "bare"}
WRITTEN = mh.safety.AnswerSettings(lambda request, answer: "complied", "bare", max_new_tokens=4, opening=" no")

pytestmark = [
    pytest.mark.usefixtures("brief_answers"),
    pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*refuses none of:UserWarning"),
]


@dataclass(frozen=True)
class Negate:
    """The head writes the opposite, as in README."""

    def __call__(self, value: Tensor, context: Context) -> Tensor:
        return -value


def halve(value: Tensor, context: Context) -> Tensor:
    """A function of one's own, which the cached runs are given to."""
    return value / 2


ONE_HEAD: dict[str, Callable[[mh.Model, Any], Any]] = {
    "ships": lambda m, rule: mh.ships(m, HARMFUL, intervention=rule, heads=HEADS, **BARE),
    "generalized ships": lambda m, rule: mh.safety.generalized_ships(
        m, HARMFUL, intervention=rule, heads=HEADS, **BARE
    ),
    "safety heads by Ships": lambda m, rule: mh.safety_heads(m, HARMFUL, 1, intervention=rule, heads=HEADS),
    "safety heads by contribution": lambda m, rule: mh.safety_heads(
        m, HARMFUL, 1, harmless=HARMLESS, intervention=rule, heads=HEADS, **BARE
    ),
    "safety heads by attribution": lambda m, rule: mh.safety_heads(
        m, HARMFUL, 1, score="refusal_attribution", intervention=rule, heads=HEADS, **BARE
    ),
    "ablations": lambda m, rule: next(
        iter(mh.safety.compare_ablations(m, HARMFUL, 1, ablations=[rule], heads=HEADS).values())
    ),
    "contribution": lambda m, rule: mh.safety.refusal_contribution(
        m, HARMFUL, HARMLESS, intervention=rule, opening=" no yes", heads=HEADS, **BARE
    ),
    "attribution": lambda m, rule: mh.safety.refusal_attribution(
        m, HARMFUL, intervention=rule, openings=[" no yes"], heads=HEADS, **BARE
    ),
}
SETS: dict[str, Callable[[mh.Model, Any], Any]] = {
    "sahara": lambda m, rule: mh.safety.sahara(m, HARMFUL, 2, intervention=rule, heads=HEADS, draws=0, **BARE),
    "refusal test": lambda m, rule: mh.safety.refusal_test(
        m, HEADS, HARMFUL, HARMLESS, intervention=rule, draws=1, answers=WRITTEN, texts=[" a big dog"]
    ),
    "attack curve": lambda m, rule: mh.safety.attack_curve(
        m, HEADS, HARMFUL, HARMLESS, intervention=rule, draws=0, answers=WRITTEN
    ),
}
RULES = [Negate(), halve, *get_args(InterventionName)]
CALLED = {"Negate": "Negate()", "halve": "halve"}


def _name(rule: Any) -> str:
    return str(getattr(rule, "__name__", rule))


EVERY_RULE = ("contribution", "sahara")
"""The others ablate as Ships do, which are tested below, or as sahara does."""
PAIRED = [(function, rule) for function in EVERY_RULE for rule in RULES]
PAIRED += [(function, rule) for function in ONE_HEAD if function not in EVERY_RULE for rule in ("patch", Negate())]
PAIRED += [
    (function, rule) for function in SETS if function not in EVERY_RULE for rule in ("patch", "resample", "mean")
]


@pytest.mark.parametrize(("function", "rule"), PAIRED, ids=_name)
def test_every_function_takes_every_intervention(llama: mh.Model, function: str, rule: Any):
    """Or says what it lacks: requests have no other run, and sets of heads no other prompt."""
    call = (ONE_HEAD | SETS)[function]
    refused = (rule == "patch" and function != "contribution") or (rule == "resample" and function in SETS)
    if refused:
        with pytest.raises(
            ValueError, match=r"(intervention|ablations) is (Patch|Resample)\(.*\), which takes .* give another"
        ):
            call(llama, rule)
        return
    found = call(llama, rule)
    named = rule if isinstance(rule, str) else CALLED[getattr(rule, "__name__", type(rule).__name__)]
    ablation = found.provenance["ablation"]
    assert ablation == ([named] if function == "attribution" else named)
    if isinstance(found, mh.HeadScores):
        assert np.isfinite(found.scores.values).sum() == len(HEADS)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "patch"], ids=_name)
def test_ships_is_a_sweep_of_the_kl(llama: mh.Model, rule: Any):
    found = mh.ships(llama, mh.Prompts(HARMFUL), intervention=rule)
    swept = mh.sweep(llama, mh.Prompts(HARMFUL), intervention=rule, metric=mh.kl_divergence)
    np.testing.assert_allclose(found.values, swept.values, rtol=1e-6, atol=1e-9)
    assert found.values is not None and float(found.values.max()) > 1e-4
