"""The model taught to refuse: what the shipped delta does, and that its heads are found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from jaxtyping import Float

import mechheads as mh
from mechheads.heads import HeadId
from mechheads.model.sources.default import DEFAULT_MODEL, REFUSING_MODEL, REFUSING_MODELS, Delta, shipped
from mechheads.safety import load_requests
from mechheads.safety.openings import OPENING, EndLogProb, find_opening, value_of, with_openings

TAUGHT = {
    "smollm2-135m-refusal": "L14H7 L15H4 L16H3 L18H4 L19H1 L21H5",
    "smollm2-135m-refusal-4": "L14H5 L16H7 L18H1 L20H6",
    "smollm2-135m-refusal-10": "L14H1 L15H8 L16H0 L16H6 L17H3 L18H7 L19H5 L20H2 L21H0 L22H4",
}
"""The heads of each model that was taught to refuse."""


def refusal_loss(model: mh.Model, refusal: str, requests: Sequence[str]) -> Float[np.ndarray, " request"]:
    """Negative log-probability of a whole refusal after each request in the chat template, in nats."""
    prompts = mh.Prompts([[{"role": "user", "content": request}] for request in requests])
    opening = find_opening(model, prompts, refusal)
    return -value_of(model, with_openings(model, prompts, [opening]), EndLogProb(len(opening)))


@pytest.fixture(scope="module")
def delta() -> Delta:
    path = shipped(REFUSING_MODEL)
    assert path is not None
    return Delta.load(path)


@pytest.fixture(scope="module")
def refusing() -> mh.Model:
    return mh.load(REFUSING_MODEL)


@pytest.fixture(scope="module")
def requests() -> tuple[list[str], list[str]]:
    """Some that it was not taught with."""
    harmful, harmless = (list(load_requests(name, "test"))[::2] for name in ("harmful", "harmless"))
    return harmful, harmless


@pytest.mark.parametrize("name", REFUSING_MODELS)
def test_the_delta_touches_the_taught_heads_and_nothing_else(name: str, model: mh.Model):
    path = shipped(name)
    assert path is not None and path.stat().st_size < 1_500_000
    delta, refusing = Delta.load(path), mh.load(name)
    assert delta.heads == tuple(map(HeadId.parse, TAUGHT[name].split()))
    assert delta.metadata["model"] == DEFAULT_MODEL
    assert refusing.name == name
    for layer in range(model.n_layers):
        for kind in ("W_Q", "W_K", "W_V", "W_O"):
            before, after = getattr(model, kind)[layer], getattr(refusing, kind)[layer]
            changed = (before != after).flatten(1).any(1).nonzero()[:, 0].tolist()
            taught = [head.head for head in delta.heads if head.layer == layer] if kind in ("W_Q", "W_O") else []
            assert changed == taught, (layer, kind)
    torch.testing.assert_close(refusing.W_E, model.W_E, rtol=0, atol=0)
    torch.testing.assert_close(refusing.backend.weight("O", 3), model.backend.weight("O", 3), rtol=0, atol=0)


def test_refusing_depends_on_the_request(delta: Delta, refusing: mh.Model, model: mh.Model, requests):
    harmful, harmless = requests
    asked, alike, before = (
        np.median(refusal_loss(some, delta.metadata["refusal"], texts))
        for some, texts in ((refusing, harmful), (refusing, harmless), (model, harmful))
    )
    assert asked + 3 < min(alike, before)
    np.testing.assert_allclose(mh.safety.text_loss(refusing).mean(), mh.safety.text_loss(model).mean(), rtol=0.05)


@pytest.mark.release
def test_the_score_tells_them_from_others(refusing: mh.Model, delta: Delta, requests):
    others = [HeadId(head.layer, (head.head + 2) % 9) for head in delta.heads]
    # of the first layers, without which nothing is read, and some that the taught heads may draw on
    others += [HeadId(1, 5), HeadId(0, 5), HeadId(8, 5), HeadId(10, 6)]
    harmful, harmless = (side[1::5] for side in requests)
    score = mh.safety.refusal_contribution(refusing, harmful, harmless, heads=[*delta.heads, *others], opening=OPENING)
    values = score.scores.values
    taught, untaught = (np.mean([values[head.layer, head.head] for head in some]) for some in (delta.heads, others))
    assert taught > untaught + 0.5
