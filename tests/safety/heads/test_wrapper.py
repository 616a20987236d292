"""What a wrapper takes from heads, against small steps of z in full forward passes, one request and token at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.safety import refusal_attribution, refusal_contribution, wrapper_effect, wrapper_tokens
from support import oracles
from support.levels import few

ARCHITECTURES = few(("gpt2", "llama"), "llama")

pytestmark = pytest.mark.filterwarnings("ignore:.*hardly any refusal:UserWarning")

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes"]
HARMLESS = [" The capital of Italy", " John gave a cat to Mary no", " one"]
WRAPPER = " When Mary went to the store{request} and cannot help"
WRAPPED = [WRAPPER.replace("{request}", each) for each in HARMFUL]
OWN = ["When", "Mary", "went", "to", "the", "store", "and", "cannot", "help"]
OPENINGS = [" no yes one", " no no two"]
HEADS = ((0, 0), (1, 3))
STEP = 0.02


def row_of(model: mh.Model, request: str) -> list[int]:
    """A request as the tiny models' chat template puts it."""
    return model.tokenizer(f"user: {request}\nassistant:", add_special_tokens=False).input_ids


def refusing(model: mh.Model, row: list[int], layer: int, head: int, steps: tuple[float, ...]) -> list[float]:
    """The log-probability of any opening, with z so many steps towards the mean of both ablations; in full passes."""
    found = []
    for text in OPENINGS:
        opening = model.tokenizer(text, add_special_tokens=False).input_ids
        ids = torch.tensor([[*row, *opening]])
        here = oracles.activations(model, ids)
        z = here[oracles.name(layer, "z")][0, :, head]
        even = oracles.z_when(model, ids, layer, head, "q", here[oracles.name(layer, "q")] * 1e-4)
        changes = [step * ((even + 1e-4 * z) / 2 - z) for step in steps]
        logits = [oracles.with_z(model, ids, layer, head, z + change)[0].double() for change in changes]
        at = torch.arange(-len(opening) - 1, -1)
        found.append([float(each.log_softmax(-1)[at, opening].sum()) for each in logits])
    return list(np.logaddexp.reduce(found))


def part(model: mh.Model, row: list[int], layer: int, head: int) -> float:
    """How far refusing falls along the step, right up to the fourth power of it."""
    far_back, back, on, far_on = refusing(model, row, layer, head, (-2 * STEP, -STEP, STEP, 2 * STEP))
    return (8 * (back - on) - (far_back - far_on)) / (12 * STEP)


def test_the_effect_is_the_part_alone_minus_the_part_in_the_wrapper(small: mh.Model):
    found = wrapper_effect(small, HARMFUL, wrapper=WRAPPER, openings=OPENINGS)
    sizes = []
    for layer, head in HEADS:
        alone, wrapped = (
            [part(small, row_of(small, each), layer, head) for each in side] for side in (HARMFUL, WRAPPED)
        )
        np.testing.assert_allclose(found.values[layer, head], np.subtract(alone, wrapped), atol=3e-3)
        for name, wanted in (("alone", alone), ("wrapped", wrapped)):
            assert float(found.dataset[name][layer, head]) == pytest.approx(np.mean(wanted), abs=3e-3)
        sizes.append(np.abs(np.subtract(alone, wrapped)).max())
    assert max(sizes) > 2e-2
    for name, side in (("refusal", HARMFUL), ("refusal_wrapped", WRAPPED)):
        wanted = [refusing(small, row_of(small, each), 0, 0, (0,))[0] for each in side]
        np.testing.assert_allclose(found.dataset[name].values, wanted, atol=1e-5)
    about = found.provenance
    assert (found.unit, about["template"], about["wrapper"]) == ("nats", "chat", WRAPPER)


def test_a_token_takes_what_comes_back_without_it(small: mh.Model):
    found = wrapper_tokens(small, HARMFUL[1:], wrapper=WRAPPER, openings=OPENINGS)
    assert [name.partition(": ")[2] for name in found.dataset["token"].values] == OWN
    for index, token in ((0, 3), (1, 6)):
        row = row_of(small, WRAPPED[1 + index])
        place = row.index(small.tokenizer(f" {OWN[token]}", add_special_tokens=False).input_ids[0])
        without = row[:place] + row[place + 1 :]
        for layer, head in HEADS:
            wanted = part(small, without, layer, head) - part(small, row, layer, head)
            assert float(found.values[layer, head, token, index]) == pytest.approx(wanted, abs=3e-3)
        (wanted,) = refusing(small, without, 0, 0, (0,))
        assert float(found.dataset["refusal_without"][token, index]) == pytest.approx(wanted, abs=1e-5)


def test_both_parts_are_those_of_the_functions_for_one_side(llama: mh.Model):
    given: dict[str, Any] = {"wrapper": WRAPPER, "openings": OPENINGS[:1], "heads": ["L0H1", "L1H3"]}
    found = wrapper_effect(llama, HARMFUL[1:], by="contribution", harmless=HARMLESS[1:], **given)
    wrapped = [WRAPPER.replace("{request}", each) for each in HARMLESS]
    sides = ((HARMFUL[1:], HARMLESS[1:]), (WRAPPED[1:], wrapped[1:]))
    parts = [refusal_contribution(llama, *side, opening=OPENINGS[0], heads=["L0H1", "L1H3"]).values for side in sides]
    np.testing.assert_allclose(found.values, parts[0].values - parts[1].values, atol=1e-5)
    estimated = wrapper_effect(llama, HARMFUL[1:], **given)
    single = [refusal_attribution(llama, side, openings=OPENINGS[:1]).values[1, 3] for side, _ in sides]
    np.testing.assert_allclose(estimated.values[1, 3], single[0].values - single[1].values, atol=1e-5)
    assert found.dataset["alone_low"].shape == (llama.n_layers, llama.n_heads)
    assert len(found.heads(20)) == 2


@pytest.mark.parametrize("template", ["bare", "query", "chat"])
def test_tokens_are_found_in_every_template_and_shared_ones_are_left_out(llama: mh.Model, template: Any):
    find = partial(wrapper_tokens, llama, openings=OPENINGS, template=template, heads="L1H3")
    assert [*find([" yes"], wrapper="{request} no dog").dataset["token"].values] == ["0: no", "1: dog"]
    assert [*find([" yes", " no"], wrapper=" dog no {request}").dataset["token"].values][:2] == ["0: dog", "1: no"]
    with pytest.raises(ValueError, match="wrapper shares each of its tokens with a request; give a longer one"):
        find(["es"], wrapper="y{request}")


@pytest.mark.parametrize(
    ("wrapper", "said"),
    [
        ("no place", "has no {request} in it"),
        ("{request} and {request}", "has {request} in it 2 times"),
        ("", "is empty"),
        (" \n", "is empty"),
        (" {request} ", "has no text beside {request}"),
        (None, "is None"),
        (3, "is 3"),
        (["{request}"], "is ['{request}']"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_refused_before_anything_runs(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch, wrapper: Any, said: str
):
    monkeypatch.setattr(type(llama.backend), "run", None)
    for function in (wrapper_effect, wrapper_tokens):
        with pytest.raises(ValueError) as error:
            function(llama, HARMFUL, wrapper=wrapper)
        assert str(error.value).startswith(f"wrapper {said}; give a text with {{request}} in it once, such as ")


@pytest.mark.parametrize(
    ("requests", "given", "message"),
    [
        (HARMFUL, {"harmless": HARMLESS}, 'harmless is read only with by="contribution"'),
        (HARMFUL, {"by": "contribution", "openings": OPENINGS}, 'with by="contribution" give one'),
        (HARMFUL, {"by": "contribution", "harmless": HARMLESS[:2]}, "harmful has 3 requests, harmless has 2"),
        (HARMFUL, {"heads": "L9H9"}, "L9H9"),
        (mh.Prompts(HARMFUL), {}, "harmful are mh.Prompts, which are used as they are; give texts"),
        ([], {}, "harmful is empty"),
        ([3], {}, r"harmful\[0\] is 3; it must be a text"),
    ],
)
def test_what_does_not_fit_is_refused(llama: mh.Model, requests: Any, given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        wrapper_effect(llama, requests, wrapper=WRAPPER, **given)


def test_requests_that_are_never_refused_are_warned_of_once(llama: mh.Model):
    with pytest.warns(UserWarning, match="hardly any refusal") as warned:
        wrapper_effect(llama, HARMFUL, wrapper=WRAPPER, openings=OPENINGS)
    assert sum("hardly any refusal" in str(each.message) for each in warned) == 1
