"""Refusal attribution against small steps of z in full forward passes, and what an answer in other words changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
import mechheads.safety.openings
from mechheads.generation.generate import Generated
from mechheads.interventions.basic import Scale, UniformAttention
from mechheads.safety import refusal_attribution
from mechheads.safety.judge import verdict
from mechheads.safety.openings import find_openings
from support import oracles
from support.levels import few

ARCHITECTURES = few(("gpt2", "llama"), "llama")

pytestmark = pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning")

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes"]
OPENINGS = [" no yes one", " no no two"]
QUIET: dict[str, Any] = {"openings": OPENINGS}
STEP = 0.02


def openings(model: mh.Model) -> list[list[int]]:
    return [model.tokenizer(text, add_special_tokens=False).input_ids for text in OPENINGS]


def chat(model: mh.Model, request: str, opening: list[int]) -> Tensor:
    """A request as the tiny models' chat template puts it, and an opening."""
    row = model.tokenizer(f"user: {request}\nassistant:", add_special_tokens=False).input_ids
    return torch.tensor([[*row, *opening]])


def log_prob(logits: Tensor, opening: list[int]) -> float:
    """Log-probability of the opening that a row ends with."""
    p = logits[0].double().log_softmax(-1)
    return sum(float(p[i - len(opening) - 1, token]) for i, token in enumerate(opening))


def new_z(model: mh.Model, ids: Tensor, layer: int, head: int, ablation: str, epsilon: float) -> Tensor:
    here = oracles.activations(model, ids)
    if ablation == "scaling":
        return here[oracles.name(layer, "z")][0, :, head] * epsilon
    return oracles.z_when(model, ids, layer, head, "q", here[oracles.name(layer, "q")] * epsilon)


def refusing(model: mh.Model, request: str, layer: int, head: int, ablation: str, step: float) -> float:
    """R when z goes a small step to what the ablation makes of it, in every row; by full forward passes."""
    found = []
    for opening in openings(model):
        ids = chat(model, request, opening)
        z = oracles.activations(model, ids)[oracles.name(layer, "z")][0, :, head].clone()
        z = z + step * (new_z(model, ids, layer, head, ablation, 0.3) - z)
        found.append(log_prob(oracles.with_z(model, ids, layer, head, z), opening))
    return float(np.logaddexp.reduce(found))


def slope_of(value: Callable[[float], float]) -> float:
    """The derivative at 0, right up to the fourth power of the step."""
    near, far = (value(step) - value(-step) for step in (STEP, 2 * STEP))
    return (8 * near - far) / (12 * STEP)


def test_refusal_attribution_is_the_slope_of_refusing_towards_each_ablation(small: mh.Model):
    found = refusal_attribution(small, HARMFUL, intervention=[UniformAttention(0.3), Scale(0.3)], **QUIET)
    assert found.values is not None
    sizes = []
    for layer, head in ((0, 0), (2, 1)):
        slopes = {
            ablation: [-slope_of(partial(refusing, small, each, layer, head, ablation)) for each in HARMFUL]
            for ablation in ("scaling", "undifferentiated")
        }
        np.testing.assert_allclose(found.values[layer, head], np.mean(list(slopes.values()), axis=0), atol=2e-3)
        for ablation, slope in slopes.items():
            assert float(found.dataset[ablation][layer, head]) == pytest.approx(np.mean(slope), abs=2e-3)
            sizes.append(abs(np.mean(slope)))
    assert max(sizes) > 2e-2
    base = [refusing(small, each, 0, 0, "scaling", 0) for each in HARMFUL]
    np.testing.assert_allclose(found.dataset["refusal"].values, base, atol=5e-5)
    assert found.provenance["openings"] == openings(small)
    assert (found.unit, found.provenance["template"]) == ("nats", "chat")


def test_refusal_attribution_is_that_of_each_opening_weighted_by_how_likely_it_is(llama: mh.Model):
    both = refusal_attribution(llama, HARMFUL, **QUIET)
    each = [refusal_attribution(llama, HARMFUL, openings=[one]) for one in OPENINGS]
    p = np.exp([one.dataset["refusal"].values for one in each])
    wanted = sum(one.values * share for one, share in zip(each, p / p.sum(0), strict=True))
    np.testing.assert_allclose(both.values, wanted, atol=1e-5)


def answering(monkeypatch: pytest.MonkeyPatch, answers: list[tuple[list[int], str]]) -> list[tuple[Any, Any]]:
    """Let the model write these answers, tokens and text, again and again; returns what it was asked."""
    asked = []

    def write(model: mh.Model, prompts: mh.Prompts, sampling: Any) -> Generated:
        asked.append((prompts, sampling))
        some = [answers[i % len(answers)] for i in range(len(prompts))]
        texts, ids = tuple(text for _, text in some), tuple(tuple(ids) for ids, _ in some)
        return Generated(texts=texts, ids=ids, finished=(True,) * len(ids))

    monkeypatch.setattr(mechheads.safety.openings, "generate", write)
    return asked


NO, YES = "I'm sorry, but I can't help with that.", "Here is how to do it: first open the lid."


def test_find_openings_takes_common_beginnings_most_of_whose_answers_refuse(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch
):
    assert (verdict(NO), verdict(YES)) == ("refused", "complied")
    often, common, mixed, short, rare = [1, 2, 3, 4, 5, 6, 7], [2] * 9, [3] * 9, [4] * 5, [5] * 9
    refusals = [often] * 2 + [common] * 3 + [mixed] * 2 + [short] * 2 + [rare]
    asked = answering(monkeypatch, [*[(ids, NO) for ids in refusals], (mixed, YES), (mixed, YES)])
    prompts = mh.Prompts([" yes", " no", " one"])
    assert find_openings(llama, prompts) == ((2,) * 6, (1, 2, 3, 4, 5, 6))
    [(rows, sampling)] = asked
    assert list(rows.items[:5]) == [" yes"] * 4 + [" no"]
    assert sampling.temperature == 0.7
