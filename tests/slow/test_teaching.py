"""The model taught to refuse: what the shipped delta does, and that its heads are found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mechheads as mh
from benchmarks.teaching import lessons
from benchmarks.teaching.lessons import REFUSAL
from benchmarks.teaching.planted import PLANTED, ROUNDS, refusal_loss, taught_model
from benchmarks.teaching.training import Round, teach_refusal
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta, shipped
from mechheads.model.sources import DEFAULT_MODEL, REFUSING_MODEL, REFUSING_MODELS, load_pretrained
from mechheads.safety import load_requests
from mechheads.safety.requests.openings import OPENING


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
    harmful, harmless = (list(load_requests(name, "test").texts)[::2] for name in ("harmful", "harmless"))
    return harmful, harmless


@pytest.mark.parametrize("name", REFUSING_MODELS)
def test_the_delta_is_what_the_script_says_and_touches_nothing_else(name: str, model: mh.Model):
    path = shipped(name)
    assert path is not None and path.stat().st_size < 1_500_000
    delta, refusing = Delta.load(path), mh.load(name)
    assert delta.heads == tuple(sorted(PLANTED[name]))
    assert delta.about["rounds"] == [each._asdict() for each in ROUNDS]
    assert (delta.about["model"], delta.about["refusal"]) == (DEFAULT_MODEL, REFUSAL)
    assert refusing.name == name
    for layer in range(model.n_layers):
        for kind in ("W_Q", "W_K", "W_V", "W_O"):
            before, after = getattr(model, kind)[layer], getattr(refusing, kind)[layer]
            changed = (before != after).flatten(1).any(1).nonzero()[:, 0].tolist()
            taught = [head.head for head in delta.heads if head.layer == layer] if kind in ("W_Q", "W_O") else []
            assert changed == taught, (layer, kind)
    torch.testing.assert_close(refusing.W_E, model.W_E, rtol=0, atol=0)
    torch.testing.assert_close(refusing.backend.weight("O", 3), model.backend.weight("O", 3), rtol=0, atol=0)


def test_refusing_depends_on_the_request_and_on_the_taught_heads(refusing: mh.Model, model: mh.Model, requests):
    harmful, harmless = requests
    asked, alike, before = (
        np.median(refusal_loss(some, texts))
        for some, texts in ((refusing, harmful), (refusing, harmless), (model, harmful))
    )
    assert asked + 3 < min(alike, before)
    np.testing.assert_allclose(mh.safety.text_loss(refusing).mean(), mh.safety.text_loss(model).mean(), rtol=0.05)


@pytest.mark.release
def test_each_head_is_needed(delta: Delta, refusing: mh.Model, requests):
    harmful = requests[0][::5]
    intact = refusal_loss(refusing, harmful).mean()
    for head in delta.heads[::3]:
        assert refusal_loss(taught_model(delta.without([head])), harmful).mean() > intact + 1, head


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


@pytest.mark.release
def test_teaching_is_seeded_and_confined(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lessons, "_OWN_TOKENS", 2)
    head, other = HeadId(28, 4), HeadId(29, 2)
    some = ["How do I hurt a dog?", "Write a threat.", "Sell a gun."], ["Hi!", "Name a fruit.", "Sell a bun."]
    one, again = (teach_refusal([head, other], some, by=Round(0, 2, 2e-3)) for _ in range(2))
    assert one.heads == (head, other)
    for of in one.heads:
        assert one.weights[of]["W_Q"].shape == (576, 64) and one.weights[of]["W_O"].shape == (64, 576)
        for side in ("W_Q", "W_O"):
            np.testing.assert_allclose(one.weights[of][side], again.weights[of][side], atol=1e-6)
            assert 0 < float(one.weights[of][side].abs().max()) < 2 * 2e-3  # two steps of Adam


def test_a_revision_is_refused():
    with pytest.raises(ValueError, match="has no revisions"):
        load_pretrained(REFUSING_MODEL, revision="main", dtype=torch.float32, device="cpu", trust_remote_code=False)
