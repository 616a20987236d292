"""Retrieval by what heads write: held against the sums written out, and a planted head that writes a mapped token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.prompts.tokens import Unpadded
from support.levels import few
from support.micro import micro  # noqa: F401

TEXTS = [" When John and Mary went to the store", " The capital of France is the big", " Mary gave a book to John"]
PLACES = [" and Mary", " France", (5, 10)]
PROMPTS = mh.Prompts(TEXTS, positions={"place": PLACES})
AT = [[3, 4], [4], [2]]


@pytest.fixture(params=few(("llama", "gpt2", "gemma", "neox"), "llama"))
def model(request: pytest.FixtureRequest, loaded: Any) -> mh.Model:
    return loaded(request.param)


def greedy(model: mh.Model, n: int) -> list[list[int]]:
    """What the model itself answers, so that each step is right."""
    return [list(ids) for ids in mh.generate(model, TEXTS, n).ids]


def by_hand(model: mh.Model, ids: list[int], answer: int, at: list[int]) -> np.ndarray:
    """The contrast of one step, source by source [layer, head]."""
    parts = mh.behaviour.logit_attribution(model, mh.Prompts([Unpadded(ids)], answer=[answer]), by="source")
    phi = parts.dataset["score"].values
    found = np.zeros(phi.shape[:2])
    for source in range(len(ids)):
        found += phi[..., source] * (1 if source in at else -len(at) / (len(ids) - len(at)))
    return found


def test_the_score_is_the_sum_over_the_place_less_the_others_for_every_right_step(model: mh.Model) -> None:
    prompts = PROMPTS.tokens(model)
    shift = int(prompts.strings[0][0] == " When")  # without a beginning token
    places = [[i - shift for i in at] for at in AT]
    assert [prompts.strings[0][i] for i in places[0]] == [" and", " Mary"]
    own = greedy(model, 2)
    steps = [
        [(ids, first), ([*ids, first], second)] for ids, (first, second) in zip(prompts.unpadded, own, strict=True)
    ]
    found = mh.behaviour.retrieval_heads(model, PROMPTS, answers=own)
    wrong = [[own[0][0] + 1, own[0][1]], *own[1:]]
    for i in range(3):
        wanted = np.mean([by_hand(model, ids, token, places[i]) for ids, token in steps[i]], axis=0)
        np.testing.assert_allclose(found.values[..., i], wanted, atol=1e-4)
    assert found.dataset["steps"].values.tolist() == [2, 2, 2] and found.unit == "logits"
    fewer = mh.behaviour.retrieval_heads(model, PROMPTS, answers=wrong)
    assert fewer.dataset["steps"].values[0] < 2 and fewer.dataset["steps"].values[1:].tolist() == [2, 2]
    np.testing.assert_allclose(fewer.values[..., 1:], found.values[..., 1:], atol=1e-6)
    alone = mh.behaviour.retrieval_heads(model, PROMPTS, answers=[own[0], *([ids[0] + 1] for ids in own[1:])])
    assert alone.dataset["steps"].values.tolist() == [2, 0, 0] and np.isnan(alone.values[..., 1:]).all()
    np.testing.assert_allclose(alone.scores, found.values[..., 0], atol=1e-6)


def test_a_head_that_writes_a_mapped_token_retrieves_and_copies_nothing(micro: mh.Model) -> None:
    """L0H1 attends everywhere alike and writes 6 z, z = 1/3 of France at " is", to the logit of " Paris".

    phi at " France" is 6 / 3 = 2 and 0 elsewhere. L1H0 writes 30 z, with 1/3 of the weight on each token, whose values
    are 0, 3/4 and 3/5: at " France" 7.5, elsewhere 0 and 6.
    """
    prompts = mh.Prompts([" the France is"], answer=[" Paris"], positions={"place": [" France"]})
    found = mh.behaviour.retrieval_heads(micro, prompts)
    np.testing.assert_allclose(found.scores, [[0, 2, 0, 0], [7.5 - 6 / 2, 0, 0, 0]], atol=1e-5)
    run, tokens = micro.cache(prompts), prompts.tokens(micro)
    for head in ("L0H1", "L1H0"):
        attended = tokens.ids[0, run.pattern[head][0, -1].argmax()]
        assert attended != tokens.answer[0]  # a score of literal copying is 0
    copied = mh.behaviour.logit_attribution(micro, mh.Prompts(prompts.items, answer=[" France"]))
    np.testing.assert_allclose(copied.scores, 0, atol=1e-5)


def test_needles_stand_where_they_say_and_their_controls_do_not_say_the_answer() -> None:
    prompts = mh.behaviour.needle_prompts()
    assert {kind: len(some) for kind, some in prompts.items()} == {"retrieved": 24, "known": 24, "computed": 24}
    asked = prompts["retrieved"]
    for text, answer, (start, end) in zip(asked.items, asked.answer, asked.positions["place"], strict=True):
        assert text[start:end] == answer.strip() and text.count(answer.strip()) == 1
        name = text.rpartition("The secret word of ")[2].removesuffix(" is")
        assert f"The secret word of {name} is{answer}." in text
    for text, answer in zip(prompts["known"].items, prompts["known"].answer, strict=True):
        assert answer.strip() not in text
    for text, answer in zip(prompts["computed"].items, prompts["computed"].answer, strict=True):
        one, two = text.rpartition(" ")[2].removesuffix("=").split("+")
        assert int(one) + int(two) == int(answer) and f"={answer}" not in text
    around = [text.rpartition(" The secret")[0] for text in asked.items]
    for kind in ("known", "computed"):
        assert all(text.startswith(same) for text, same in zip(prompts[kind].items, around, strict=True))


@pytest.mark.parametrize(
    ("prompts", "more", "message"),
    [
        (mh.Prompts(TEXTS), {}, r"prompts has no position 'place'; give mh.Prompts with positions=\{'place': "),
        (TEXTS, {}, r"prompts is a list; give mh.Prompts\(\[...\]\)"),
        (PROMPTS, {"place": "plce"}, "prompts has no position 'plce'"),
        (PROMPTS, {}, "answers needs a text for each of the 3 prompts"),
        (PROMPTS, {"answers": [" no"]}, "answers needs a text for each of the 3 prompts"),
        (PROMPTS, {"answers": [" no", "", " no"]}, r"answers\[1\] is '', which is no tokens of its own"),
        (mh.Prompts([" yes no yes"], answer=[" no"], positions={"place": [" yes"]}), {}, "occurs 2 times"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_runs(prompts: Any, more: Any, message: str, loaded: Any) -> None:
    with pytest.raises(ValueError, match=message):
        mh.behaviour.retrieval_heads(loaded("llama"), prompts, **more)
