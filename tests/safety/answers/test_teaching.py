"""Teaching to refuse: the lessons, the layers that are run alone, the losses and the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.safety.answers.teaching import losses as losses_file, training
from mechheads.safety.answers.teaching.lessons import Lesson, requests_to_teach
from mechheads.safety.answers.teaching.losses import Losses, Wanted
from mechheads.safety.answers.teaching.upper_layers import UpperLayers
from mechheads.safety.requests.requests import load_requests

HEADS = HeadId(1, 0), HeadId(2, 3)
SHARED = [5, 3]


@pytest.fixture
def plain(tiny: Callable[[str], Path]) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        tiny("llama"), dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture
def layers(plain: Any) -> UpperLayers:
    """A model with a random change of two heads."""
    layers, drawn = UpperLayers.of(plain, HEADS), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for both in layers.change.values():
            for weight in both:
                weight += 0.3 * torch.randn(weight.shape, generator=drawn)
    return layers


@pytest.fixture
def losses(layers: UpperLayers, monkeypatch: pytest.MonkeyPatch) -> Losses:
    monkeypatch.setattr(losses_file, "shared_beginning", lambda tokenizer, frame: SHARED)
    return Losses(layers, None, 1)


def lessons() -> list[Lesson]:
    return [Lesson("chat", [7, 9, 11], [4, 6]), Lesson("chat", [8], [10, 12, 13])]


def delta_of(layers: UpperLayers, heads: tuple[HeadId, ...] = HEADS) -> Delta:
    return Delta({h: {"W_Q": layers.change[h][0].T, "W_O": layers.change[h][1].T} for h in heads}, {})


def log_probs(model: Any, lesson: Lesson) -> Tensor:
    """What a transformers model predicts for the answer's tokens."""
    ids = torch.tensor([SHARED + lesson.prompt + lesson.answer])
    start = len(SHARED + lesson.prompt)
    with torch.no_grad():
        return model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)


def cross_entropy(found: Tensor, lesson: Lesson) -> float:
    return -float(found[range(len(lesson.answer)), lesson.answer].mean())


def each(losses: Losses, keep: bool, off: Any = ()) -> list[float]:
    return losses.each([Wanted(lesson, len(lesson.answer), keep) for lesson in lessons()], off).tolist()


def test_the_loss_is_the_cross_entropy_of_the_changed_model(plain: Any, layers: UpperLayers, losses: Losses):
    found = each(losses, keep=False)
    delta_of(layers).add_to(plain)
    assert found == pytest.approx([cross_entropy(log_probs(plain, one), one) for one in lessons()], rel=1e-4)


def test_to_keep_an_answer_is_to_predict_it_as_the_untrained_model_does(
    plain: Any, layers: UpperLayers, losses: Losses
):
    found = each(losses, keep=True)
    before = [log_probs(plain, one) for one in lessons()]
    delta_of(layers).add_to(plain)
    after = [log_probs(plain, one) for one in lessons()]
    wanted = [float((b.exp() * (b - a)).sum(-1).mean()) for b, a in zip(before, after, strict=True)]
    assert found == pytest.approx(wanted, rel=1e-3)


def test_an_answer_counts_up_to_the_tokens_that_are_wanted(plain: Any, layers: UpperLayers, losses: Losses):
    lesson = lessons()[1]
    found = losses.each([Wanted(lesson, 2, keep=False)]).item()
    delta_of(layers).add_to(plain)
    wanted = log_probs(plain, lesson)[:2]
    assert found == pytest.approx(-float(wanted[range(2), lesson.answer[:2]].mean()), rel=1e-4)


def test_an_untaught_head_is_as_before(plain: Any, layers: UpperLayers, losses: Losses):
    found = each(losses, keep=False, off=[("untaught", HEADS[1])])
    delta_of(layers, HEADS[:1]).add_to(plain)
    assert found == pytest.approx([cross_entropy(log_probs(plain, one), one) for one in lessons()], rel=1e-4)


def test_a_silent_head_writes_nothing(plain: Any, layers: UpperLayers, losses: Losses):
    found = each(losses, keep=False, off=[("silent", HEADS[1])])
    delta_of(layers).add_to(plain)
    with torch.no_grad():
        plain.model.layers[2].self_attn.o_proj.weight[:, 3 * 8 : 4 * 8] = 0
    assert found == pytest.approx([cross_entropy(log_probs(plain, one), one) for one in lessons()], rel=1e-4)


def test_an_even_head_attends_to_all_tokens_alike(plain: Any, layers: UpperLayers, losses: Losses):
    found = each(losses, keep=False, off=[("even", HEADS[1])])
    delta_of(layers).add_to(plain)
    with torch.no_grad():
        plain.model.layers[2].self_attn.q_proj.weight[3 * 8 : 4 * 8] = 0
    assert found == pytest.approx([cross_entropy(log_probs(plain, one), one) for one in lessons()], rel=1e-4)


def test_only_the_changes_get_a_gradient_and_a_removed_one_gets_none(plain: Any, layers: UpperLayers, losses: Losses):
    losses.each([Wanted(lesson, 2, keep=False) for lesson in lessons()], [("untaught", HEADS[0])]).sum().backward()
    assert all(weight.grad is None for weight in plain.parameters())
    assert all(weight.grad is None for weight in layers.change[HEADS[0]])
    assert all(float(weight.grad.abs().max()) > 0 for weight in layers.change[HEADS[1]] if weight.grad is not None)
    assert layers.change[HEADS[1]][0].grad is not None


def test_the_test_parts_are_never_taught():
    for kind in ("harmful", "harmless"):
        taught = requests_to_teach(kind)
        assert len(taught) == len(set(taught))
        assert not set(taught) & set(load_requests(kind, "test").texts)


class Recorded:
    """Losses that only remember what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[Wanted], list[Any]]] = []

    def each(self, wanted: list[Wanted], off: Any = ()) -> Tensor:
        self.asked.append((wanted, list(off)))
        return torch.ones(len(wanted), requires_grad=True) * 1.0


def test_what_a_step_learns():
    refuse, answer = (Lesson("chat", [1], [2] * 20) for _ in range(2))
    pools: Any = {
        (kind, frame): [lesson]
        for kind, lesson in (("refuse", refuse), ("answer", answer))
        for frame in ("chat", "query")
    }
    asked: Any = Recorded()
    course = training._Course(pools, HEADS, 4, Random(0))
    for step in range(100):
        course.step(step, 100, asked)
    without = [(wanted, off) for wanted, off in asked.asked if len(off) == 1]
    assert [off[0][1] for _, off in without] == [HEADS[step % 2] for step in range(30, 100)]
    assert {off[0][0] for _, off in without} == {"silent", "even", "untaught"}
    assert all(one.keep and one.lesson is refuse for wanted, _ in without for one in wanted)
    others = [head for _, off in asked.asked if len(off) == 2 for _, head in off]
    assert others and not set(others) & set(HEADS) and {head.layer for head in others} == {1, 2}
    usual = [wanted for wanted, off in asked.asked if len(off) != 1]
    assert len(usual) == 100
    assert all([one.keep for one in wanted] == [False, True] for wanted in usual)
    assert {one.tokens for wanted in usual for one in wanted} == {4, 7, 20}
    assert refuse.hard == answer.hard == 1.0


def test_training_goes_on_only_from_the_same_heads():
    start = Delta({HEADS[0]: {"W_Q": torch.zeros(32, 8), "W_O": torch.zeros(8, 32)}}, {})
    with pytest.raises(ValueError, match="start changes L1H0, but heads are L1H0, L2H3"):
        training.teach_refusal(HEADS, by=training.Round(0, 1, 2e-3), start=start)


def test_training_goes_on_from_a_change(plain: Any, layers: UpperLayers):
    again = UpperLayers.of(plain, HEADS, delta_of(layers))
    for head in HEADS:
        torch.testing.assert_close(again.change[head], layers.change[head])
        assert all(weight.requires_grad for weight in again.change[head])
