"""Metrics of a head's pattern or z against one full forward pass a head, in which a hook reads it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.metrics import attention_to
from support import oracles
from support.levels import ONE_FIRST, few, on_two
from support.releases import TRANSFORMERLENS_4
from support.texts import CLEAN, PAIRS

ARCHITECTURES = ONE_FIRST
TOLERANCE = 2e-5
TO = attention_to("L2H1", 2)


def read(model: mh.Model, ids: torch.Tensor, site: str, layer: int, head: int, hooks: Any = ()) -> torch.Tensor:
    """A head's pattern [query, key] or z [pos, d_head] in a full forward pass of TransformerLens."""
    seen: list[torch.Tensor] = []

    def see(value: torch.Tensor, hook: Any) -> None:
        seen.append(value[0, head].clone() if site == "pattern" else value[0, :, head].clone())

    oracles.forward(model, ids, [*hooks, (oracles.name(layer, site), see)])
    return seen[0]


class Loop:
    """Changes of a number read from L2H1, by one full forward pass for each head and prompt."""

    def __init__(self, model: mh.Model, of: Callable[[torch.Tensor], torch.Tensor], site: str = "pattern") -> None:
        self.model, self.of, self.site = model, of, site
        clean, corrupted = PAIRS.tokens(model)
        self.ids = [[oracles.ids_of(tokens, i) for i in range(len(PAIRS))] for tokens in (corrupted, clean)]
        self.runs = [[oracles.activations(model, ids) for ids in side] for side in self.ids]

    @cached_property
    def before(self) -> list[float]:
        return [self.value(prompt) for prompt in range(len(PAIRS))]

    def value(self, prompt: int, hooks: Any = (), side: int = 0) -> float:
        return float(self.of(read(self.model, self.ids[side][prompt], self.site, 2, 1, hooks)))

    def restored(self, prompt: int, layer: int, head: int, site: str, pos: int | None = None) -> float:
        """The change if the head gets an activation of the clean run in the corrupted one."""
        both = (runs[prompt] for runs in self.runs)
        z = oracles.patched_z(self.model, self.ids[0][prompt], *both, layer, head, site, pos)
        return self.value(prompt, oracles.z_hooks({(layer, head): z})) - self.before[prompt]


def each(model: mh.Model, prompts: int = 3) -> list[tuple[int, int, int]]:
    """Heads before layer 2, each with some of the prompts."""
    found = np.argwhere(oracles.turns(model, prompts)).tolist()
    return [(layer, head, prompt) for layer, head, prompt in found if layer < 2]


@on_two
@pytest.mark.parametrize(
    ("metric", "of"),
    [
        (attention_to("L2H1", 2), lambda pattern: pattern[-1, 2]),
        (attention_to("L2H1", 1, query=3, log=True), lambda pattern: pattern[3, 1].log()),
        (attention_to("L2H1", -2, query=-1), lambda pattern: pattern[-1, -2]),
    ],
    ids=["last", "log, inside", "from the end"],
)
def test_patching_equals_one_full_forward_a_head(small, metric, of):
    effect, loop = mh.activation_patch(small, PAIRS, metric=metric), Loop(small, of)
    for layer, head, prompt in each(small):
        assert effect.values[layer, head, prompt] == pytest.approx(
            loop.restored(prompt, layer, head, "z"), abs=TOLERANCE
        )
    assert not effect.values[2:].any()
    np.testing.assert_allclose(effect.dataset["base_metric"], loop.before, atol=TOLERANCE)
    assert effect.unit == metric.unit and np.abs(effect.values[:2]).max() > 1e-4


@pytest.mark.parametrize("site", ["q", "k", "v"])
def test_sites_are_measured_and_the_head_itself_is_not(small, site):
    effect = mh.activation_patch(small, PAIRS, site=site, metric=TO)
    loop = Loop(small, lambda pattern: pattern[-1, 2])
    for layer, head, prompt in each(small):
        wanted = loop.restored(prompt, layer, head, site)
        assert effect.values[layer, head, prompt] == pytest.approx(wanted, abs=TOLERANCE)
    own = effect.values[2, 1]
    assert not own.any() if site == "v" else np.isnan(own).all()
    assert not np.delete(effect.values[2], 1, 0).any()


def test_each_position_equals_the_loop(small):
    effect, loop = mh.activation_patch(small, PAIRS, positions="each", metric=TO), Loop(small, lambda p: p[-1, 2])
    for prompt, ids in enumerate(loop.ids[0]):
        for pos in range(ids.shape[1]):
            head = (prompt + pos) % small.n_heads
            wanted = loop.restored(prompt, 1, head, "z", pos)
            assert effect.values[1, head, pos, prompt] == pytest.approx(wanted, abs=TOLERANCE)


def test_a_metric_of_ones_own_may_read_every_row_of_a_pattern_or_z(small):
    @mh.metric(activation="L2H1.pattern", reads="all", unit="nats")
    def entropy(pattern, context):
        of_each = -(pattern * pattern.clamp_min(1e-30).log()).sum(-1)
        return (of_each * context.mask).sum(1) / context.mask.sum(1)

    @mh.metric(activation="L2H1.z", reads=2)
    def size(z, context):
        return (z - context.base_logits + 1).square().sum((1, 2))

    effect = mh.activation_patch(small, PAIRS, metric=entropy)
    loop = Loop(small, lambda pattern: -(pattern * pattern.clamp_min(1e-30).log()).sum(-1).mean())
    for layer, head, prompt in each(small):
        assert effect.values[layer, head, prompt] == pytest.approx(loop.restored(prompt, layer, head, "z"), abs=5e-5)
    effect, loop = mh.activation_patch(small, PAIRS, metric=size), Loop(small, lambda z: z, "z")
    for layer, head, prompt in each(small):
        new = oracles.activations(small, loop.ids[1][prompt])[oracles.name(layer, "z")][0, :, head]
        base, z = (
            read(small, loop.ids[0][prompt], "z", 2, 1, hooks)[-2:]
            for hooks in ((), oracles.z_hooks({(layer, head): new}))
        )
        wanted = float((z - base + 1).square().sum() - torch.ones_like(z).sum())
        assert effect.values[layer, head, prompt] == pytest.approx(wanted, abs=1e-4)
    assert np.isnan(effect.values[2, 1]).all()


@pytest.mark.parametrize("receiver", ["L2H1.q", "L2H1.k", "L1H2.v", "L1.mlp"])
def test_paths_to_a_head_equal_two_full_runs(small, receiver):
    if receiver.endswith("mlp") and not small.backend.d_mlp:
        return  # there is no such receiver
    effect = mh.path_patch(small, PAIRS, receivers=receiver, direction="denoising", metric=TO)
    loop = Loop(small, lambda pattern: pattern[-1, 2])
    layer, site = int(receiver[1]), receiver.rpartition(".")[2]
    for sender_layer, head, prompt in each(small):
        here, there = (runs[prompt] for runs in loop.runs)
        _, seen = oracles.path_first_run(small, loop.ids[0][prompt], here, there, (sender_layer, head))
        at = oracles.mlp(layer) if site == "mlp" else oracles.name(layer, site)
        hooks = [(at, lambda value, hook, new=seen[at]: new)]
        if site == "v":
            z = oracles.z_when(small, loop.ids[0][prompt], layer, 2, "v", seen[at])
            hooks = oracles.z_hooks({(layer, 2): z})
        wanted = loop.value(prompt, hooks) - loop.before[prompt]
        assert effect.values[sender_layer, head, prompt] == pytest.approx(wanted, abs=TOLERANCE)
    assert np.abs(effect.values).max() > 1e-5


def test_heads_stacked_packed_and_in_small_parts_give_the_same(llama):
    whole = mh.ablate(llama, CLEAN, metric=TO)
    small = mh.ablate(llama, CLEAN, metric=TO, budget="100 KB")
    alone = mh.ablate(llama, CLEAN[1:2], metric=TO)
    packed = mh.prepare(llama, [CLEAN[0] + end for end in (" big", " small", " of the", " is")])
    np.testing.assert_allclose(whole.values, small.values, atol=5e-6)
    np.testing.assert_allclose(whole.values[..., 1], alone.values[..., 0], atol=5e-6)
    together = mh.ablate(packed, metric=TO)
    one = [mh.ablate(llama, [CLEAN[0] + end], metric=TO).values[..., 0] for end in (" big", " small", " of the", " is")]
    np.testing.assert_allclose(together.values, np.stack(one, -1), atol=5e-6)


def test_no_later_block_and_no_logits_are_computed(llama, monkeypatch):
    ran: list[int] = []
    hooks = [(f"blocks.{i}.hook_resid_pre", lambda value, hook, i=i: ran.append(i)) for i in range(llama.n_layers)]
    hooks += [("blocks.1.attn.hook_z", lambda value, hook: ran.append(99))]
    monkeypatch.setattr(type(llama.backend), "unembed", lambda *_, **__: ran.append(100))
    effect = llama.backend.under(hooks, partial(mh.ablate, llama, CLEAN, metric=attention_to("L1H1", 2)))
    after_the_cached_run = ran[len(ran) - ran[::-1].index(2) :]
    assert np.abs(effect.values).max() > 0 and 0 in ran
    assert set(after_the_cached_run) == {0, 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: attention_to("L9H1", 2), "L9H1 is out of range"),
        (lambda: attention_to("L0H1", 2), "none of them comes before L0H1.pattern.*choose a head of a later layer"),
        (lambda: attention_to("L2H1", 4, query=3), "L2H1 gives token 4 of prompt 0 no attention at all from token 3"),
        (lambda: attention_to("L2H1", "subject"), "key: position 'subject'; these prompts have last"),
        (lambda: mh.metric(activation="L2H1.q"), "activation is 'L2H1.q'; give the pattern or the z of a head"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(llama, make, message):
    with pytest.raises(ValueError, match=message):
        mh.ablate(llama, CLEAN, metric=make())


FAMILIES = ("qwen3", "gemma2", "gemma3", "gpt-neox", "bloom", "gpt-oss", "mistral", "olmo2-mha", "cohere2", "falcon-7b")
ON_3 = ("qwen3", "gemma2", "gpt-neox", "gpt-oss", "mistral")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", few(FAMILIES if TRANSFORMERLENS_4 else ON_3, "gemma2", "qwen3"))
def test_every_kind_of_attention(name, fused, family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mh.load(family(name))
        if not fused:
            model.backend.take_steps()
        ids = [[5, 6, 7, 8, 9], [9, 8, 7, 6, 5, 4, 3]]
        last = model.n_layers - 1
        metric = attention_to((last, 1), -1, query=-2 + 1)
        effect = mh.ablate(model, ids, metric=metric)
    for prompt, row in enumerate(ids):
        whole = torch.tensor([row])
        before = float(read(model, whole, "pattern", last, 1)[-1, -1])
        zero = torch.zeros(len(row), model.d_head)
        after = read(model, whole, "pattern", last, 1, oracles.z_hooks({(last - 1, 0): zero}))[-1, -1]
        assert effect.values[last - 1, 0, prompt] == pytest.approx(float(after) - before, abs=5e-5)


def test_a_key_outside_the_window_is_refused(family):
    model = mh.load(family("mistral"))
    with pytest.raises(ValueError, match="gives token 0 of prompt 0 no attention at all from last, because it comes"):
        mh.ablate(model, [list(range(3, 30))], metric=attention_to("L1H1", 0))
