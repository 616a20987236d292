"""The engine against a slow loop and TransformerLens' own functions, on every tiny architecture."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mechheads as mh
from mechheads.interventions.new_z import CheckedIntervention, all_new_z
from support import oracles
from support.levels import ONE_FIRST, on_two
from support.releases import only_on_4
from support.texts import CLEAN, CORRUPTED, PAIRS

ARCHITECTURES = ONE_FIRST

TOLERANCE = 1e-4


def heads_of(model: mh.Model) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]


class Loop:
    """Patching of pairs by one full forward pass at a time; ``base`` is changed, ``source`` gives what is new."""

    def __init__(self, model: mh.Model, direction: str = "denoising") -> None:
        clean, corrupted = PAIRS.tokens(model)
        self.model = model
        self.base, self.source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
        both = [[oracles.ids_of(tokens, i) for i in range(len(PAIRS))] for tokens in (self.base, self.source)]
        self.ids = both[0]
        self.runs = [[oracles.activations(model, ids) for ids in pair] for pair in zip(*both, strict=True)]
        self.before = [
            oracles.logit_diff(oracles.forward(model, ids)[0], self.base, i) for i, ids in enumerate(self.ids)
        ]

    def effect(self, prompt: int, layer: int, head: int, site: str, pos: int | None = None) -> Any:
        ids = self.ids[prompt]
        logits = oracles.patched_logits(self.model, ids, *self.runs[prompt], layer, head, site, pos)
        return pytest.approx(oracles.logit_diff(logits, self.base, prompt) - self.before[prompt], abs=TOLERANCE)


loop_of = cache(Loop)


@on_two
@pytest.mark.parametrize(
    ("site", "direction"),
    [*((site, "denoising") for site in ("z", "q", "k", "v", "pattern")), ("z", "noising"), ("k", "noising")],
)
def test_patching_equals_one_full_forward_a_head(small, site, direction):
    effect, loop = mh.activation_patch(small, PAIRS, site=site, direction=direction), loop_of(small, direction)
    for layer, head, prompt in np.argwhere(oracles.turns(small, len(PAIRS))):
        assert effect.values[layer, head, prompt] == loop.effect(prompt, layer, head, site)


@only_on_4
def test_an_architecture_without_cached_keys_is_carried_whole(loaded):
    """Bloom adds its positions to the scores, by the place of a key in its row."""
    bloom = loaded("bloom")
    effect, loop = mh.activation_patch(bloom, PAIRS, heads=["L0H1", "L2H3"]), Loop(bloom)
    assert bloom.backend.layout == "whole"
    for prompt in range(len(PAIRS)):
        for layer, head in ((0, 1), (2, 3)):
            assert effect.values[layer, head, prompt] == loop.effect(prompt, layer, head, "z")


@on_two
@pytest.mark.parametrize("site", ["z", "q", "k", "v", "pattern"])
def test_patching_each_position_equals_the_loop(small, site):
    effect = mh.activation_patch(small, PAIRS, site=site, positions="each", heads=["L0H1", "L2H3"])
    loop = loop_of(small)
    assert effect.scores.dims == ("layer", "head", "pos")
    for prompt, n in enumerate(loop.base.lengths.tolist()):
        for pos in range(n):
            layer, head = [(0, 1), (2, 3)][(prompt + pos) % 2]
            assert effect.values[layer, head, pos, prompt] == loop.effect(prompt, layer, head, site, pos)
        assert np.isnan(effect.values[0, 1, n:, prompt]).all()


@pytest.mark.parametrize("positions", [["subject", "last"], "subject", [1, -1], ["last", 1]], ids=str)
def test_named_and_numbered_positions_are_those_of_each(small, positions):
    pairs = mh.PromptPairs.from_templates(
        " The capital of{subject} is the",
        {"subject": [(" France", " Italy"), (" Spain", " Germany")]},
        answer=[(" Paris", " Rome"), (" Madrid", " Berlin")],
    )
    tokens, _ = pairs.tokens(small)
    each = mh.activation_patch(small, pairs, positions="each").values
    found = mh.activation_patch(small, pairs, positions=positions)
    names = [positions] if isinstance(positions, str) else positions
    at = [int(tokens.positions[name][0]) if isinstance(name, str) else name % each.sizes["pos"] for name in names]
    if names is positions:
        mixed = len(set(map(type, names))) > 1
        assert found.dataset["pos"].values.tolist() == (list(map(str, names)) if mixed else names)
    np.testing.assert_allclose(found.values, each.values[:, :, at if names is positions else at[0]], atol=1e-6)


@on_two
@pytest.mark.parametrize("kind", ["zero", "mean", "resample", "scaled", "uniform"])
def test_ablation_equals_one_full_forward_a_head(small, kind):
    seed = 3
    rule = mh.patching.Scale(0.4) if kind == "scaled" else kind
    result = mh.ablate(small, CLEAN, intervention=rule, seed=seed)
    tokens = mh.Prompts(CLEAN).tokens(small)
    cached = [oracles.activations(small, oracles.ids_of(tokens, prompt)) for prompt in range(len(CLEAN))]
    before = [oracles.forward(small, oracles.ids_of(tokens, prompt))[0] for prompt in range(len(CLEAN))]
    for layer, head, prompt in np.argwhere(oracles.turns(small, len(CLEAN))):
        new = oracles.ablated_z(kind, cached, prompt, (layer, head), small.n_heads, seed)
        changed = oracles.with_z(small, oracles.ids_of(tokens, prompt), layer, head, new)[0]
        expected = oracles.kl(before[prompt], changed)
        assert float(result.values[layer, head, prompt]) == pytest.approx(expected, abs=TOLERANCE)


def test_a_metric_may_read_every_position(small):
    @mh.metric(reads="all")
    def mean_logit(logits, context):
        return (logits[..., 7] * context.mask).sum(-1) / context.mask.sum(-1)

    result = mh.ablate(small, CLEAN, metric=mean_logit, heads="L1H2")
    tokens = mh.Prompts(CLEAN).tokens(small)
    for prompt in range(len(CLEAN)):
        ids = oracles.ids_of(tokens, prompt)
        z = torch.zeros(ids.shape[1], small.d_head)
        changed, before = oracles.with_z(small, ids, 1, 2, z)[0], oracles.forward(small, ids)[0]
        expected = float((changed - before)[:, 7].mean())
        assert float(result.values[1, 2, prompt]) == pytest.approx(expected, abs=TOLERANCE)


def test_transformerlens_own_patching_gives_the_same(small):
    from transformer_lens import patching

    pairs = mh.PromptPairs(CLEAN[:1] * 2, CORRUPTED[:1] * 2, answer=[" Paris", " Madrid"], wrong=[" Rome", " Berlin"])
    clean, corrupted = pairs.tokens(small)
    _, clean_cache = small.model.run_with_cache(clean.ids)
    metric = partial(oracles.mean_logit_diff, tokens=clean)
    before = float(metric(oracles.forward(small, corrupted.ids)))
    theirs = {
        "z": patching.get_act_patch_attn_head_out_all_pos,
        "q": patching.get_act_patch_attn_head_q_all_pos,
        "pattern": patching.get_act_patch_attn_head_pattern_all_pos,
    }
    for site, function in theirs.items():
        with torch.no_grad():
            expected = torch.as_tensor(function(small.model, corrupted.ids, clean_cache, metric)).numpy() - before
        ours = mh.activation_patch(small, pairs, site=site)
        np.testing.assert_allclose(ours.scores, expected, atol=TOLERANCE)
    with torch.no_grad():
        by_pos = torch.as_tensor(
            patching.get_act_patch_attn_head_out_by_pos(small.model, corrupted.ids, clean_cache, metric)
        )
    ours = mh.activation_patch(small, pairs, positions="each")
    np.testing.assert_allclose(ours.scores.transpose("layer", "pos", "head"), by_pos.numpy() - before, atol=TOLERANCE)


def test_attention_spreads_evenly_also_where_a_norm_would_undo_a_factor_on_q(loaded):
    model = loaded("qwen")
    base = model.cache(CLEAN[:1], sites=("z", "v", "scored_q"))
    rule = CheckedIntervention(mh.patching.UniformAttention(1e-6))
    store = all_new_z(model, base, None, rule, None, range(model.n_layers), 1)
    for layer, head in heads_of(model):
        wanted = oracles.causal_mean(base.v[layer, head][0])
        torch.testing.assert_close(store[layer][0, head], wanted, atol=1e-5, rtol=1e-4)


ATTENTION = mh.metric(activation="L2H1.pattern")(lambda pattern, context: pattern[:, -1, 0])
PLANNED: dict[str, dict[str, Any]] = {
    "a metric of answers": {"intervention": "patch", "base": "corrupted", "metric": "logit_diff"},
    "k at each token": {"intervention": mh.Patch("k"), "metric": "log_prob", "positions": "each"},
    "a pattern": {"intervention": "zero", "metric": ATTENTION},
    "given": {"intervention": "zero", "given": ["L0H1"]},
}


@pytest.mark.parametrize(
    ("name", "prepared"),
    [("a metric of answers", False), ("k at each token", False), ("a pattern", False), ("given", True)],
)
def test_plan_counts_what_torch_counts(small, name, prepared):
    def inputs() -> tuple[Any, ...]:
        return (mh.prepare(small, PAIRS),) if prepared else (small, PAIRS)

    plan, again = mh.plan(*inputs(), **PLANNED[name]), inputs()
    with FlopCounterMode(display=False) as counter:
        mh.sweep(*again, **PLANNED[name])
    assert plan.flops == pytest.approx(counter.get_total_flops(), rel=0.2)
    whole = mh.plan(small, PAIRS, **PLANNED[name]).flops
    assert plan.flops <= whole


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": "L9H0"}, "out of range: this model has layers 0..2 with heads 0..3"),
        ({"positions": "subject"}, "'subject' is not known; these prompts have last"),
        ({"base": "dirty"}, "base is 'dirty'"),
        ({"intervention": mh.Zero}, "intervention is <class"),
        ({"metric": mh.logit_diff}, "needs answers"),
        ({"intervention": mh.Patch()}, "give mh.PromptPairs"),
        ({"metric": lambda logits, context: logits.mean() * torch.nan}, r"gave shape \[\] for 2 prompts"),
        ({"metric": lambda logits, context: logits[:, 0, 0] * torch.nan}, "not finite for the unchanged run"),
        ({"intervention": lambda z, context: z[:1]}, "must return a tensor of shape"),
        ({"intervention": lambda z, context: z / 0}, "not finite for L0H0"),
    ],
)
def test_bad_input_is_one_clear_error(llama, change, message):
    with pytest.raises(ValueError, match=message):
        mh.sweep(llama, CLEAN, **({"intervention": mh.Zero()} | change))


def test_an_intervention_may_work_in_place(small):
    def cut(z, context):
        z[:, 1] = 0
        return z

    def cut_a_copy(z, context):
        return cut(z.clone(), context)

    for positions in ("last", "each", "all"):
        ours = mh.sweep(small, CLEAN, intervention=cut, positions=positions)
        wanted = mh.sweep(small, CLEAN, intervention=cut_a_copy, positions=positions)
        np.testing.assert_array_equal(ours.values, wanted.values)


def test_a_metric_may_work_in_place(loaded):
    def spoil(logits, context):
        value = mh.kl_divergence(logits, context)
        context.base_logits.mul_(0.5)
        logits.zero_()
        return value

    small = loaded("llama")
    ours = mh.ablate(small, CLEAN, metric=spoil)
    np.testing.assert_array_equal(ours.values, mh.ablate(small, CLEAN).values)


def test_a_metric_that_breaks_on_one_head_loses_that_head_alone(loaded):
    small = loaded("llama")

    def broken(z, context):
        return z * 50 if context.head == mh.HeadId(2, 1) else z

    with pytest.warns(UserWarning, match="not finite for L2H1; their scores are NaN"):
        result = mh.sweep(small, CLEAN, intervention=broken, metric=overflowing)
    assert result.missing == (mh.HeadId(2, 1),)


def overflowing(logits, context):
    changed = logits[:, -1] - context.base_logits[:, -1]
    return torch.where(changed.abs().amax(-1) > 0.01, torch.nan, changed.mean(-1))


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("far", [0.0, 1e-3, 3.0, 25.0, 60.0, 105.0, 1e4])
def test_kl_is_exact_near_and_far(far, gains):
    """Two-token vocabulary by hand: KL = p log(p/q) + (1-p) log((1-p)/(1-q))."""
    from mechheads.metrics import MetricContext
    from mechheads.prompts.tokens import Tokens

    base = torch.tensor([[[0.3, 0.0]]])
    other = torch.tensor([[[0.3 - far, 0.0]]])
    base, other = (other, base) if gains else (base, other)
    one = torch.ones(1, dtype=torch.long)
    tokens = Tokens(one[None], one, {"last": one - 1}, None, None, ("0",), (("a",),))
    both = torch.tensor([[True, False]])  # the second position is padding, and does not count
    value = mh.kl_divergence(other.expand(1, 2, 2), MetricContext(base.expand(1, 2, 2), tokens, both))
    p, q = base.double()[0, 0].log_softmax(-1), other.double()[0, 0].log_softmax(-1)
    assert float(value) == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-4, abs=1e-9)


def test_answers_alone_give_the_numbers_of_the_whole_vocabulary(small):
    few = mh.activation_patch(small, PAIRS)
    every = mh.activation_patch(small, PAIRS, metric=mh.metric()(mh.logit_diff))
    assert getattr(mh.logit_diff, "vocab") == "answers"  # noqa: B009
    np.testing.assert_allclose(few.values, every.values, atol=1e-5)
    with pytest.raises(ValueError, match="vocab is 'some'"):
        mh.metric(vocab="some")


def test_where_memory_runs_out_halves_go_one_after_the_other(small, monkeypatch):
    from mechheads.engine.wavefront import Wave

    whole = mh.activation_patch(small, PAIRS)
    run, tried = Wave.run, []

    def scarce(self, copies):
        tried.append(len(copies))
        if len(copies) > 2:
            raise torch.OutOfMemoryError("no memory")
        return run(self, copies)

    monkeypatch.setattr(Wave, "run", scarce)
    halved = mh.activation_patch(small, PAIRS)
    assert tried[:3] == [12, 6, 3]
    np.testing.assert_allclose(halved.values, whole.values, atol=1e-5)
    monkeypatch.setattr(Wave, "run", lambda self, copies: scarce(self, copies * 3))
    with pytest.raises(torch.OutOfMemoryError):
        mh.activation_patch(small, PAIRS)


@pytest.mark.filterwarnings("ignore:A forward hook edited hook_scale")
@pytest.mark.parametrize("name", ["blocks.2.ln1.hook_normalized", "blocks.2.ln2.hook_scale"])
def test_a_users_hook_on_a_norm_counts(tiny, name):
    small = mh.load(tiny("llama"))
    without = mh.ablate(small, CLEAN, heads="L1H1")
    small.model.add_hook(name, lambda value, hook: 1.5 * value)
    ours = mh.ablate(small, CLEAN, heads="L1H1")
    tokens = mh.Prompts(CLEAN).tokens(small)
    for prompt in range(len(CLEAN)):
        ids = oracles.ids_of(tokens, prompt)
        z = torch.zeros(ids.shape[1], small.d_head)
        expected = oracles.kl(oracles.forward(small, ids)[0], oracles.with_z(small, ids, 1, 1, z)[0])
        assert float(ours.values[1, 1, prompt]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    assert np.abs(ours.values[1, 1] - without.values[1, 1]).max() > 1e-3
