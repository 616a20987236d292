"""Refusal Contribution against full forward passes with z replaced by hand, and on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
import mechheads.safety.openings
from mechheads.generation.generate import Generated, Sampling
from mechheads.safety import OPENING, refusal_contribution
from mechheads.safety.heads.contribution import shared_end
from mechheads.safety.judge import verdict
from mechheads.safety.openings import find_opening
from mechheads.safety.requests import Sides
from support import oracles, weight_surgery
from support.levels import few
from support.micro import micro  # noqa: F401
from support.rules import rule_of

ARCHITECTURES = few(("gpt2", "llama", "neox"), "llama")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning"),
]

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes", " Rome is big"]
HARMLESS = [" no", " When Mary went to the store John gave a book", " three cat", " Rome is"]
BEGINS = " no yes one"
QUIET: dict[str, Any] = {"opening": BEGINS}
HEADS = [(0, 0), (1, 3), (2, 1)]


def begins(model: mh.Model) -> list[int]:
    ids = model.tokenizer(BEGINS, add_special_tokens=False).input_ids
    assert len(ids) == 3
    return ids


def chats(model: mh.Model, requests: Sequence[str]) -> list[Tensor]:
    """Each request as the tiny models' chat template puts it, and the refusal but for its last token."""
    texts = [f"user: {request}\nassistant:" for request in requests]
    rows = [model.tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    return [torch.tensor([[*row, *begins(model)[:-1]]]) for row in rows]


def refusing(model: mh.Model, logits: Tensor) -> float:
    """Log-probability of how refusals begin, token by token, of the last logits."""
    ids = begins(model)
    p = logits[-len(ids) :].double().log_softmax(-1)
    return sum(float(p[i, token]) for i, token in enumerate(ids))


def test_patch_is_a_full_forward_with_z_of_the_last_tokens_replaced_by_hand(small: mh.Model):
    found = refusal_contribution(small, HARMFUL, HARMLESS, intervention="patch", **QUIET)
    assert found.provenance["template"] == "chat"
    rows, others = chats(small, HARMFUL), chats(small, HARMLESS)
    assert len({ids.shape[1] for ids in rows + others}) > 4
    ending = small.tokenizer("\nassistant:", add_special_tokens=False).input_ids
    n = len(ending) + 2
    assert found.provenance["last_tokens"] == n
    assert found.values is not None
    for i, (ids, other) in enumerate(zip(rows, others, strict=True)):
        base = refusing(small, oracles.forward(small, ids)[0])
        assert float(found.dataset["refusal"][i]) == pytest.approx(base, abs=5e-5)
        here, there = oracles.activations(small, ids), oracles.activations(small, other)
        for layer, head in HEADS:
            z = here[oracles.name(layer, "z")][0, :, head].clone()
            z[-n:] = there[oracles.name(layer, "z")][0, -n:, head]
            total = base - refusing(small, oracles.with_z(small, ids, layer, head, z)[0])
            assert float(found.values[layer, head, i]) == pytest.approx(total, abs=5e-5)
    assert float(found.scores[HEADS[0]]) != pytest.approx(float(found.scores[HEADS[2]]), abs=1e-3)


@pytest.mark.parametrize(("by", "which"), [("undifferentiated", "q"), ("scaling", "v")])
def test_what_an_ablation_does_to_any_answer_is_taken_off(
    llama: mh.Model, tiny: Callable[[str], Path], by: Any, which: Any
):
    found = refusal_contribution(llama, HARMFUL, HARMLESS, intervention=rule_of(by, epsilon=0.3), **QUIET)
    assert found.values is not None
    layer, head = 1, 2
    intact = weight_surgery.separate(tiny("llama"))
    altered = weight_surgery.scale(weight_surgery.separate(tiny("llama")), [mh.HeadId(layer, head)], which, 0.3)
    both, moved = (intact, altered), []
    before, after = ([refusing(llama, weight_surgery.logits(it, ids)) for ids in chats(llama, HARMFUL)] for it in both)
    lost = np.subtract(before, after)
    for row in chats(llama, HARMLESS):
        ids = row[:, : -len(begins(llama)) + 1]
        for _ in range(2):
            ids = torch.cat([ids, weight_surgery.logits(intact, ids)[-1:, None].argmax(-1).view(1, 1)], dim=1)
        before, after = weight_surgery.logits(intact, ids), weight_surgery.logits(altered, ids)
        moved.append(sum(oracles.kl(before[:end], after[:end]) for end in range(len(before) - 2, len(before) + 1)))
    np.testing.assert_allclose(found.values[layer, head], lost - moved, atol=2e-5)
    assert min(moved) > 1e-5
    metadata = found.provenance
    assert (metadata["ablation"], metadata["epsilon"], metadata["last_tokens"]) == (by, 0.3, None)
    assert metadata["opening"] == begins(llama)


def test_on_paper(micro: mh.Model):
    """The micro-model names Paris after France, as a refusal is named after a harmful request; see ``test_micro``.

    " is" is the one token that both prompts end with, so n = 1. With logits of Paris p and Rome r and k other words
    of logit 0, R = p - log(e^p + e^r + k).
    """
    k = micro.d_vocab - 2

    def log_prob(paris: float, rome: float) -> float:
        return paris - math.log(math.exp(paris) + math.exp(rome) + k)

    france, italy = mh.Prompts([" the France is"]), mh.Prompts([" the Italy is"])
    found = refusal_contribution(micro, france, italy, intervention="patch", opening=" Paris")
    assert (found.provenance["last_tokens"], found.provenance["template"]) == (1, "prompts as given")
    before = log_prob(15.5, 0)
    assert found.dataset["refusal"].values.tolist() == pytest.approx([before], abs=1e-5)
    # L0H0: moved is 1/2 italy at " is", still 3/4 france before: Paris 30 * (3/4)/3 = 7.5 and 2, Rome 30 * (1/2)/3 = 5.
    # L0H1: 2 for Rome in place of Paris. L1H0: Rome 13 in place of Paris 13.5.
    total = {(0, 0): log_prob(9.5, 5), (0, 1): log_prob(13.5, 2), (1, 0): log_prob(2, 13)}
    for layer, head in [(layer, head) for layer in range(2) for head in range(4)]:
        at = (layer, head)
        assert float(found.scores[layer, head]) == pytest.approx(before - total.get(at, before), abs=1e-5)
    assert found.heads(1) == (mh.HeadId(1, 0),)
    other_way = refusal_contribution(micro, italy, france, intervention="patch", opening=" Paris")
    assert float(other_way.scores[1, 0]) == pytest.approx(log_prob(0, 15) - log_prob(13.5, 2), abs=1e-5)
    assert float(other_way.scores[1, 0]) < -10  # it makes the model refuse the other one
    zero = refusal_contribution(micro, france, italy, intervention="zero", opening=" Paris")
    kept, left = np.array([15.5 - 0.5, *[0.0] * (k + 1)]), np.array([2.0, *[0.0] * (k + 1)])
    p, q = (logits - np.log(np.exp(logits).sum()) for logits in (kept, left))
    moved = float((np.exp(p) * (p - q)).sum())
    assert float(zero.scores[1, 0]) == pytest.approx(before - log_prob(2, 0) - moved, abs=1e-4)


def test_which_tokens_prompts_share_at_their_end(llama: mh.Model):
    def shared(*sides: list[list[int]]) -> int:
        return shared_end(*(mh.Prompts(rows).tokens(llama) for rows in sides))

    assert shared([[9, 5, 6, 7], [6, 7]], [[1, 2, 3, 4, 6, 7]]) == 2
    assert shared([[5, 7], [6, 7]], [[5, 6]]) == 1  # none: the last token all the same
    assert shared([[5, 6, 7]], [[5, 6, 7], [1, 5, 6, 7]]) == 3
    assert shared([[0, 7, 0], [7, 0]], [[0]]) == 1  # a token of the number that padding has is a token
    assert shared([[8, 7, 0], [7, 0]]) == 2


def test_the_opening_is_that_of_most_refusals(llama: mh.Model, monkeypatch: pytest.MonkeyPatch):
    answers = {"a": [1, 2, 3, 4, 5, 6, 7, 8], "b": [1, 2, 3, 4, 5, 6, 9], "c": [9] * 8, "d": [5] * 8}

    def generate(model: mh.Model, prompts: mh.Prompts, sampling: Sampling, **options: Any) -> Any:
        texts = ["Sure: here you are." if item == "d" else f"I cannot do {item}, sorry." for item in prompts.items]
        return Generated(tuple(texts), tuple(tuple(answers[str(item)]) for item in prompts.items), (True,))

    assert verdict("I cannot do a, sorry.") == "refused"
    monkeypatch.setattr(mechheads.safety.openings, "generate", generate)
    assert find_opening(llama, mh.Prompts(["d", "d", "c", "a", "b"])) == (1, 2, 3, 4, 5, 6)
    assert find_opening(llama, mh.Prompts([*["d"] * 14, "a", "b", *["c"] * 3])) == (1, 2, 3, 4, 5, 6)  # the first 16
    with pytest.warns(UserWarning, match="refuses none of 16 requests"):
        find_opening(llama, mh.Prompts([*["d"] * 16, "a"]))
    with pytest.warns(UserWarning, match="refuses none of 1 requests"):
        found = find_opening(llama, mh.Prompts(["d"]))
    assert found == tuple(llama.tokenizer(OPENING, add_special_tokens=False).input_ids)
    assert find_opening(llama, mh.Prompts(["d"]), BEGINS) == tuple(begins(llama))
    with pytest.raises(ValueError, match="opening is ''"):
        find_opening(llama, mh.Prompts(["d"]), "")


def test_sides(llama: mh.Model, monkeypatch: pytest.MonkeyPatch):
    sides = Sides.of(llama, ["one", "two"], ["three"], None)
    assert (sides.template, sides.harmful.texts, sides.harmless.texts) == ("chat", ("one", "two"), ("three",))
    assert sides.harmful.prompts.items[1] == [{"role": "user", "content": "two"}]
    with pytest.raises(ValueError, match="harmful has 2 requests, harmless has 1; give a look-alike for each"):
        sides.check_pairs()
    assert Sides.of(llama, ["one"], ["two"], "query").harmful.prompts.items == ["## Query:one\n## Answer:"]
    own = Sides.of(
        llama,
        mh.Prompts(["one", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]]),
        mh.Prompts([[4, 5, 6]]),
        None,
    )
    assert (own.template, own.harmful.texts, own.harmless.texts) == ("prompts as given", ("one", "a"), ("4 5 6",))
    shipped = Sides.of(llama, None, None, None)
    shipped.check_pairs()
    assert len(shipped.harmful) == len(set(shipped.harmful.texts)) == 60
    monkeypatch.setattr(llama.tokenizer, "chat_template", None)
    assert Sides.of(llama, ["one"], ["two"], None).template == "query"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervention": "poem"}, "intervention is 'poem'; choose one of 'patch', 'zero'"),
        ({"intervention": mh.Patch("q")}, "only their z can be patched"),
        ({"harmless": HARMLESS[:2]}, "harmful has 4 requests, harmless has 2"),
        ({"harmful": []}, "harmful is empty"),
        ({"opening": ""}, "opening is ''; give the beginning of a refusal"),
        ({"opening": ["Sorry"]}, "opening is a list; give a text"),
    ],
)
def test_bad_input_is_named_before_any_head_is_tried(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
):
    monkeypatch.setattr("mechheads.engine.wavefront.Wave.run", None)
    with pytest.raises(ValueError, match=message):
        refusal_contribution(llama, **({"harmful": HARMFUL, "harmless": HARMLESS} | QUIET | options))
