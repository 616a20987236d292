"""Teaching to refuse: the losses are those of the whole changed model, and no request of a test part is a lesson."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from benchmarks.teaching import losses as losses_file
from benchmarks.teaching.lessons import Lesson, requests_to_teach
from benchmarks.teaching.losses import Losses, Wanted
from benchmarks.teaching.upper_layers import UpperLayers
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.safety import load_requests

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


@pytest.mark.parametrize("way", [None, "untaught", "silent", "even"])
def test_the_loss_is_the_cross_entropy_of_the_changed_model_also_without_a_head(
    way: Any, plain: Any, layers: UpperLayers, losses: Losses
):
    off = [(way, HEADS[1])] if way else []
    found = losses.each([Wanted(lesson, len(lesson.answer), keep=False) for lesson in lessons()], off).tolist()
    delta_of(layers, HEADS[:1] if way == "untaught" else HEADS).add_to(plain)
    attention, own = plain.model.layers[2].self_attn, slice(3 * 8, 4 * 8)
    with torch.no_grad():
        if way == "silent":
            attention.o_proj.weight[:, own] = 0
        elif way == "even":
            attention.q_proj.weight[own] = 0
    assert found == pytest.approx([cross_entropy(log_probs(plain, one), one) for one in lessons()], rel=1e-4)


def test_to_keep_an_answer_is_to_predict_it_as_the_untrained_model_does(
    plain: Any, layers: UpperLayers, losses: Losses
):
    found = losses.each([Wanted(lesson, len(lesson.answer), keep=True) for lesson in lessons()]).tolist()
    before = [log_probs(plain, one) for one in lessons()]
    delta_of(layers).add_to(plain)
    after = [log_probs(plain, one) for one in lessons()]
    wanted = [float((b.exp() * (b - a)).sum(-1).mean()) for b, a in zip(before, after, strict=True)]
    assert found == pytest.approx(wanted, rel=1e-3)


def test_the_test_parts_are_never_taught():
    for kind in ("harmful", "harmless"):
        taught = requests_to_teach(kind)
        assert len(taught) == len(set(taught))
        assert not set(taught) & set(load_requests(kind, "test").texts)
