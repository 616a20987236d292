"""Attribution is the slope of the exact effect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Spec
from mechheads.patching import attribution
from mechheads.patching.attribution import attribution_patch
from mechheads.patching.gradients import Size, gradients_of
from mechheads.runs.head_cache import HeadCache
from support import oracles
from support.levels import ONE_FIRST, TWO_FIRST
from support.micro import DENOISING, NOISING, micro, pair  # noqa: F401
from support.texts import CAPITALS_CLEAN, CAPITALS_CORRUPTED, CAPITALS_PAIRS

SITES = ("z", "q", "k", "v", "pattern")


@pytest.fixture(scope="module")
def pairs() -> mh.PromptPairs:
    return CAPITALS_PAIRS


def new_z(model, here, there, ids, layer, site, at=None):
    """z [pos, head, d_head] of a layer when a site is that of the other run, at one position or all."""
    old = here[oracles.name(layer, "z")][0]
    mine, other = here[oracles.name(layer, site)], there[oracles.name(layer, site)]
    if site == "z":
        return oracles.blend(old, other[0], at)
    if site in ("k", "v"):
        other, at = oracles.blend(mine[0], other[0], at)[None], None
    seen = []
    hooks = [
        (oracles.name(layer, site), lambda value, hook: other),
        (oracles.name(layer, "z"), lambda z, hook: seen.append(z[0].clone())),
    ]
    oracles.forward(model, ids, hooks)
    return oracles.blend(old, seen[0], at)


WAYS, WEIGHTS = (-2, -1, 1, 2), (1 / 12, -2 / 3, 2 / 3, -1 / 12)


def slopes(model, measure, ids, layer, along, embeddings=None, step=1e-2):
    """Five-point difference of a metric along a change of each head's z [head], in the run with these embeddings.

    One full forward pass has a row for each head and step.
    """
    n = along.shape[1]

    def put(z, hook):
        z = z.clone()
        for head in range(n):
            for i, way in enumerate(WAYS):
                z[4 * head + i, :, head] += way * step * along[:, head]
        return z

    hooks = [(oracles.name(layer, "z"), put)]
    if embeddings is not None:
        hooks.append(("blocks.0.hook_resid_pre", lambda value, hook: embeddings.expand_as(value)))
    logits = oracles.forward(model, ids.repeat(4 * n, 1), hooks)
    values = torch.stack([measure(row.double()) for row in logits]).view(n, 4)
    return (values * torch.tensor(WEIGHTS, dtype=values.dtype)).sum(1) / step


def embedded(model, ids):
    """The residual stream before the first block [pos, d_model]."""
    kept = []
    oracles.forward(model, ids, [("blocks.0.hook_resid_pre", lambda value, hook: kept.append(value[0].clone()))])
    return kept[0]


def close(got, wanted):
    """Norms of llama and gemma round to single precision whatever the model is in; hence an absolute part."""
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=3e-4)


@pytest.mark.parametrize("architecture", ONE_FIRST)
def test_steps_take_the_mean_slope_between_the_embeddings_of_the_runs(tiny, pairs, architecture):
    model = mh.load(tiny(architecture), dtype=torch.float64)
    found = {
        ("z", 2, 0): attribution_patch(model, pairs, steps=2),
        ("z", 3, 1): attribution_patch(model, pairs, steps=3, direction="noising"),
        ("k", 1, 0): mh.settings(budget="1 MB")(attribution_patch)(model, pairs, site="k", steps=1),
    }
    clean, corrupted = pairs.tokens(model)
    for prompt in range(len(pairs)):
        runs = [oracles.ids_of(tokens, prompt) for tokens in (corrupted, clean)]
        kept = [oracles.activations(model, ids) for ids in runs]
        answer, wrong = clean.answer[prompt], clean.wrong[prompt]
        for (site, steps, way), scores in found.items():
            here, there = kept[way], kept[1 - way]
            first, last = (embedded(model, runs[side]) for side in (way, 1 - way))
            for layer in range(model.n_layers):
                old = here[oracles.name(layer, "z")][0]
                along = new_z(model, here, there, runs[way], layer, site) - old
                points = [first + (k + 0.5) / steps * (last - first) for k in range(steps)]
                each = [
                    slopes(model, lambda x, a=answer, w=wrong: x[-1, a] - x[-1, w], runs[way], layer, along, point)
                    for point in points
                ]
                close(scores.values[layer, :, prompt], torch.stack(each).mean(0))
    assert found["z", 2, 0].provenance["steps"] == 2 and found["z", 2, 0].name.endswith("denoising, 2 steps")


@pytest.mark.parametrize("architecture", TWO_FIRST)
def test_attribution_is_the_slope_of_the_exact_effect(tiny, pairs, architecture):
    model = mh.load(tiny(architecture), dtype=torch.float64)
    results = {site: attribution_patch(model, pairs, site=site).values for site in SITES}
    results["noising"] = attribution_patch(model, pairs, direction="noising").values
    clean, corrupted = pairs.tokens(model)
    for prompt in range(len(pairs)):
        runs = [(oracles.ids_of(tokens, prompt), tokens) for tokens in (corrupted, clean)]
        kept = [oracles.activations(model, ids) for ids, _ in runs]
        for name, values in results.items():
            site, way = ("z", 1) if name == "noising" else (name, 0)
            ids, here, there = runs[way][0], kept[way], kept[1 - way]
            answer, wrong = clean.answer[prompt], clean.wrong[prompt]
            for layer in range(model.n_layers):
                old, new = here[oracles.name(layer, "z")][0], new_z(model, here, there, ids, layer, site)
                wanted = slopes(model, lambda x, a=answer, w=wrong: x[-1, a] - x[-1, w], ids, layer, new - old)
                close(values[layer, :, prompt], wanted)


@pytest.mark.parametrize("site", ["z", "k"])
def test_attribution_of_each_position_is_its_slope(tiny, pairs, site):
    model = mh.load(tiny("llama"), dtype=torch.float64)
    chosen = [(0, 1), (2, 0), (2, 3)]
    values = attribution_patch(model, pairs, site=site, positions="each", heads=chosen).values
    assert values.dims == ("layer", "head", "pos", "prompt")
    assert int(np.isfinite(values).any(("pos", "prompt")).sum()) == len(chosen)
    clean, corrupted = pairs.tokens(model)
    answer, wrong = clean.answer[0], clean.wrong[0]
    ids = oracles.ids_of(corrupted, 0)
    here, there = oracles.activations(model, ids), oracles.activations(model, oracles.ids_of(clean, 0))
    for pos in range(ids.shape[1]):
        for layer, heads in ((0, [1]), (2, [0, 3])):
            old, new = here[oracles.name(layer, "z")][0], new_z(model, here, there, ids, layer, site, pos)
            wanted = slopes(model, lambda x: x[-1, answer] - x[-1, wrong], ids, layer, new - old)
            close(values[layer, heads, pos, 0], wanted[heads])
    assert np.isnan(values[:, :, ids.shape[1] :, 0]).all()
    assert np.isfinite(values[2, 3, :, 1]).all()


def test_a_metric_of_every_position_and_a_named_one(tiny, pairs):
    @mh.metric(reads="all")
    def mean_logit(logits, context):
        return (logits[..., 7] * context.mask).sum(-1) / context.mask.sum(-1)

    model = mh.load(tiny("neox"), dtype=torch.float64)
    values = attribution_patch(model, pairs, metric=mean_logit, positions="last").values
    clean, corrupted = pairs.tokens(model)
    for prompt in range(len(pairs)):
        ids, other = oracles.ids_of(corrupted, prompt), oracles.ids_of(clean, prompt)
        here, there = oracles.activations(model, ids), oracles.activations(model, other)
        for layer in range(model.n_layers):
            old = here[oracles.name(layer, "z")][0]
            new = new_z(model, here, there, ids, layer, "z", ids.shape[1] - 1)
            close(values[layer, :, prompt], slopes(model, lambda x: x[:, 7].mean(), ids, layer, new - old))


@pytest.mark.parametrize("site", SITES)
def test_attribution_is_exact_where_all_that_follows_is_linear(micro, pair, site):
    for direction, wanted in {"denoising": DENOISING, "noising": NOISING}.items():
        values = attribution_patch(micro, pair, site=site, direction=direction)
        np.testing.assert_allclose(values.scores, wanted[site], atol=1e-4)


def test_transformerlens_own_attribution_is_the_same(tiny, pairs):
    from transformer_lens.tools.analysis import attribution_patch as theirs

    model = mh.load(tiny("llama"), backend="bridge")
    one = mh.PromptPairs(CAPITALS_CLEAN[:1], CAPITALS_CORRUPTED[:1], answer=[" Paris"], wrong=[" Rome"])
    clean, corrupted = one.tokens(model)
    answer, wrong = int(clean.answer[0]), int(clean.wrong[0])
    found = theirs(
        model.model, clean.ids, corrupted.ids, lambda logits: logits[0, -1, answer] - logits[0, -1, wrong]
    ).node_scores
    values = attribution_patch(model, one, positions="each").scores
    heads = {node: score for node, score in found.items() if node.kind == "attn_head_out"}
    assert len(heads) == values.size
    for node, score in heads.items():
        assert float(values[node.layer, node.head, node.position]) == pytest.approx(score, rel=1e-3, abs=1e-5)


def test_any_intervention_has_an_estimate(micro):
    @dataclass(frozen=True)
    class Negate:
        def __call__(self, z, context):
            return torch.where(context.mask[..., None], -z, torch.nan)  # what is put at padding does not count

    france = mh.Prompts([" the France is", " the France"], [" Paris"] * 2, [" Rome"] * 2)
    (found,) = attribution.estimates(CachedRuns(micro, france), [Spec(france, Negate(), mh.logit_diff)])
    exact = mh.sweep(micro, france, intervention=Negate(), metric=mh.logit_diff)
    np.testing.assert_allclose(found.values[:, :, 0], exact.values, atol=1e-4)


def estimates(model, pairs):
    return attribution_patch(model, pairs).values.to_numpy()


def test_no_weight_needs_a_gradient(tiny, pairs):
    model = mh.load(tiny("gpt2"))
    wanted, weights = estimates(model, pairs), list(model.model.parameters())
    for weight in weights:
        weight.requires_grad_(False)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            np.testing.assert_array_equal(estimates(model, pairs), wanted)
    assert not any(weight.requires_grad for weight in weights)


def naive_kl(logits, context):
    log_p, log_q = context.base_logits[:, -1].log_softmax(-1), logits[:, -1].log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


@torch.no_grad()
def without_gradient(logits, context):
    return mh.logit_diff(logits, context)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": mh.patching.accuracy}, "metric accuracy has no gradient .* use mh.logit_diff"),
        ({"metric": without_gradient}, "metric without_gradient has no gradient"),
        ({"metric": lambda x, c: torch.tensor(x[:, 0, 0].numpy())}, "has no gradient .*numpy"),
        ({"metric": mh.kl_divergence}, "kl_divergence is a distance from the base run, .* use mh.logit_diff"),
        ({"metric": naive_kl}, "naive_kl is a distance from the base run"),
        ({"metric": lambda x, c: x.mean()}, r"gave shape \[\] for 2 prompts"),
    ],
)
def test_what_does_not_fit_is_one_clear_error_before_anything_runs(llama, pairs, monkeypatch, change, message):
    monkeypatch.setattr(HeadCache, "run", None)
    with pytest.raises(ValueError, match=message):
        attribution_patch(llama, pairs, **change)


def test_no_pairs_and_a_flat_or_infinite_gradient(llama, pairs):
    with pytest.raises(ValueError, match=r"pairs is a \w+; give mh\.PromptPairs"):
        attribution_patch(llama, CAPITALS_CLEAN)

    def saturated(logits, context):
        return mh.logit_diff(logits, context).clamp(-1e-9, 1e-9) * 1e9

    def steep(logits, context):
        away = mh.logit_diff(logits, context) - mh.logit_diff(context.base_logits, context)
        return away.abs().sqrt() + away

    with pytest.raises(ValueError, match="saturated has a gradient of 0 at the unchanged run"):
        gradients_of(llama.cache(pairs.side("clean")), saturated, (0, 1), Size(2))
    with pytest.raises(ValueError, match="steep has a gradient that is not finite at the unchanged run"):
        gradients_of(llama.cache(pairs.side("clean")), steep, (0, 1), Size(2))
