"""Warnings about answers that the clean run contradicts, on the default model, which knows its capitals."""

from __future__ import annotations

import warnings

import pytest

import mechheads as mh
from mechheads.engine.report import AnswerWarning

CLEAN = ["The capital of France is", "The capital of Russia is"]
CORRUPTED = ["The capital of Italy is"] * 2

ANALYSES = {
    "sweep": lambda m, p, **k: mh.sweep(m, p, intervention=mh.Patch(), metric=mh.logit_diff, heads="L29H0", **k),
    "activation_patch": lambda m, p, **k: mh.activation_patch(m, p, heads="L29H0", **k),
    "attribution_patch": lambda m, p, **k: mh.patching.attribution_patch(m, p, heads="L29H0", **k),
    "path_patch": lambda m, p, **k: mh.path_patch(m, p, senders="L29H0", direction="denoising", **k),
    "patch_sets": lambda m, p, **k: mh.patching.patch_sets(m, p, [["L29H0"]], **k),
    "faithfulness": lambda m, p, **k: mh.patching.faithfulness(m, p, ["L29H0"], **k),
}


def pairs(answer: list[str], wrong: list[str]) -> mh.PromptPairs:
    return mh.PromptPairs(CLEAN, CORRUPTED, answer, wrong)


pytestmark = pytest.mark.slow  # of the default model


def said(analysis, model, prompts, **given) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        analysis(model, prompts, **given)
    assert all(one.filename == __file__ for one in caught if one.category is AnswerWarning)
    return [str(one.message) for one in caught if one.category is AnswerWarning]


@pytest.mark.parametrize("name", ANALYSES)
def test_each_is_warned_of_once_a_call(model, name):
    """Paris stands on the wrong side for France; Moscow is right for Russia."""
    (message,) = said(ANALYSES[name], model, pairs([" Rome", " Moscow"], [" Paris", " Rome"]))
    assert message.startswith(
        "the clean run prefers `wrong` to `answer` for 1 of 2 prompts: 'The capital of France is' (' Paris' "
    )
    assert message.endswith("). Leave these prompts out, or check answer= and wrong=")


def test_an_answer_without_its_space(model):
    (message,) = said(ANALYSES["activation_patch"], model, pairs(["Paris", " Moscow"], [" Rome", " Rome"]))
    assert message.startswith(
        "answer: the token with a leading space is much more likely for 1 of 2 prompts: 'The capital of Fr"
    )
    assert " is' (' Paris' 0." in message and " against 'Paris' 0.000" in message
    assert message.endswith('). Write answers exactly as they continue the prompt, such as answer=[" Paris"]')


@pytest.mark.parametrize(
    ("prompts", "metric"),
    [
        (pairs([" Paris", " Moscow"], [" Rome", " Rome"]), "logit_diff"),  # nothing is wrong
        (pairs([" Rome", " Rome"], [" Paris", " Moscow"]), "kl_divergence"),  # reads no answers
        (pairs([" Rome", " Rome"], [" Paris", " Moscow"]), "log_prob"),  # reads no wrong ones
        (mh.Prompts(["I counted: 1 2 3 "], ["4"]), "log_prob"),  # the prompt has the space
        (mh.Prompts(CLEAN), "kl_divergence"),
    ],
)
def test_where_answers_do_not_matter_or_are_right_nothing_is_said(model, prompts, metric):
    assert said(mh.ablate, model, prompts, metric=metric, heads="L29H0") == []
