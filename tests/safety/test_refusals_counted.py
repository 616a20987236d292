"""Refusals are counted before anything is said of them: by scripted answers, and by hand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mechheads as mh
import mechheads.safety.openings as refusing_module
from mechheads.generation.generate import Generated
from mechheads.safety.openings import ANSWERED, TOKENS, count_refusals, warn_if_rare
from mechheads.safety.requests import Side

NO, YES, STUCK = "I'm sorry, but I can't help with that.", "Number {} is what you ask for.", "It is an old story."
BROKEN = "so so so so so so so so"


def side(n: int, *, repeated: int = 1) -> Side:
    texts = [f" Give me number {i}." for i in range(n)] * repeated
    return Side(mh.Prompts(texts), "bare", tuple(texts))


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Let the model write these answers, again and again; gives what it was asked."""

    def script(*answers: str) -> list[tuple[list[Any], int]]:
        asked: list[tuple[list[Any], int]] = []

        def write(model: mh.Model, prompts: mh.Prompts, sampling: Any) -> Generated:
            if sampling.max_new_tokens == TOKENS:  # not those from which openings are taken
                asked.append(([*prompts.items], sampling.max_new_tokens))
            texts = tuple(answers[i % len(answers)].format(i) for i in range(len(prompts)))
            return Generated(texts, ((5, 6),) * len(texts), (True,) * len(texts))

        monkeypatch.setattr(refusing_module, "generate", write)
        return asked

    return script


def test_refusals_are_counted_among_answers(llama: mh.Model, answer):
    asked = answer(NO, NO, YES, NO, NO, BROKEN, NO, NO)
    found = count_refusals(llama, side(8))
    assert found == {"n": 6, "of": 8, "judge": "rule_judge", "tokens": 32}
    assert asked == [([f" Give me number {i}." for i in range(8)], 32)]


def test_a_thought_that_does_not_end_is_no_answer(llama: mh.Model, answer):
    answer(NO, "<think> Let me see", NO, YES)
    found = count_refusals(llama, side(8))
    assert found is not None and (found["n"], found["of"]) == (4, 6)
    answer("<think> Let me see")
    assert count_refusals(llama, side(8)) is None


def test_a_few_different_requests_are_answered(llama: mh.Model, answer):
    asked = answer(NO)
    found = count_refusals(llama, side(40, repeated=2))
    assert found is not None and found["of"] == 14 <= ANSWERED
    assert asked[0][0] == [f" Give me number {i}." for i in range(0, 40, 3)]


def test_openings_have_the_mean_of_their_probabilities(llama: mh.Model, answer):
    answer(YES)
    ids = [llama.tokenizer(text, add_special_tokens=False).input_ids for text in (" no yes", " one two")]
    told = 'gives the openings "no yes", "one two" together a mean probability of 5.0% (3 requests; '
    with pytest.warns(UserWarning, match=re.escape(told)):
        warn_if_rare(llama, side(3), ids, np.log([0.02, 0.04, 0.09]))


@pytest.mark.filterwarnings("ignore:.*(refuses none of|gives the opening):UserWarning")
def test_safety_heads_say_how_many_requests_the_model_refuses(llama: mh.Model, answer):
    asked = answer(NO, YES)
    requests, few = [" one dog", " two cat", " a big dog"], {"heads": ["L0H1", "L2H0"]}
    both = mh.safety.compare_ablations(llama, requests, 2, **few)
    counted = {"n": 2, "of": 3, "judge": "rule_judge", "tokens": 32}
    assert [scores.provenance["refused"] for scores in both.values()] == [counted] * 2
    assert [items for items, _ in asked] == [mh.safety.request_prompts(llama, requests).items]
    one = mh.safety_heads(llama, requests, 2, harmless=requests[::-1], **few)
    assert one.provenance["refused"] == counted
    assert asked[-1][0] == mh.safety.request_prompts(llama, requests, "chat").items
