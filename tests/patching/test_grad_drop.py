"""GradDrop is the sum over layers of what a run gives whose autograd does not see that layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.engine.job import Spec, make_ready
from mechheads.limits import Limits
from mechheads.metrics.basic import as_metric
from mechheads.patching.attribution import attribution_patch
from mechheads.patching.grad_drop import GradDrop
from mechheads.patching.gradients import AtBase, Size, Watch, gradients_of
from mechheads.runs.head_cache import HeadCache
from support import oracles
from support.architectures import architectures
from support.blank import Blank
from support.ctrl_c import stopped_at
from support.interrupts import changes_on
from support.releases import only_on_3, only_on_4
from support.texts import CAPITALS_PAIRS

pytestmark = pytest.mark.transformerlens

SITES = ("z", "q", "k", "v", "pattern")
QUIET = {"progress": False}


@pytest.fixture(scope="module")
def pairs() -> mh.PromptPairs:
    return CAPITALS_PAIRS


@pytest.fixture(scope="module")
def llama(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


def slopes(model, ids, answer, wrong, dropped):
    """The gradient of the logit difference at the last position, if the block ``dropped`` adds only a constant.

    One [pos, head, d_head] for each layer, by autograd through a whole run of TransformerLens.
    """
    z, before = {}, {}

    def watch(value, hook):
        z[hook.name] = value if value.requires_grad else value.detach().requires_grad_()
        return z[hook.name]

    def enter(value, hook):
        before["stream"] = value

    def leave(value, hook):
        return before["stream"] + (value - before["stream"]).detach()

    hooks = [(oracles.name(layer, "z"), watch) for layer in range(model.n_layers)]
    hooks += [(f"blocks.{dropped}.hook_resid_pre", enter), (f"blocks.{dropped}.hook_resid_post", leave)]
    with torch.enable_grad():
        logits = model.model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1]
        found = torch.autograd.grad(logits[answer] - logits[wrong], list(z.values()), allow_unused=True)
    return [torch.zeros_like(at[0]) if each is None else each[0] for at, each in zip(z.values(), found, strict=True)]


def changes(model, ids, here, there, layer, site):
    """How z [pos, head, d_head] of a layer changes when each head's site is that of the other run."""
    old, new = here[oracles.name(layer, "z")][0], there[oracles.name(layer, site)]
    if site == "z":
        return new[0] - old
    found = [oracles.z_when(model, ids, layer, head, site, new) for head in range(model.n_heads)]
    return torch.stack(found, dim=1) - old


def wanted(model, pairs, site, way=0):
    """The definition, with one run of the whole model for each layer [layer, head, prompt]; way 1 is noising."""
    clean, corrupted = pairs.tokens(model)
    sizes = np.zeros((model.n_layers, model.n_heads, len(pairs)))
    for prompt in range(len(pairs)):
        runs = [oracles.ids_of(tokens, prompt) for tokens in (corrupted, clean)]
        ids = runs[way]
        here, there = (oracles.activations(model, each) for each in (ids, runs[1 - way]))
        change = [changes(model, ids, here, there, layer, site) for layer in range(model.n_layers)]
        for dropped in range(model.n_layers):
            gradients = slopes(model, ids, int(clean.answer[prompt]), int(clean.wrong[prompt]), dropped)
            for layer, gradient in enumerate(gradients):
                sizes[layer, :, prompt] += (change[layer] * gradient).sum((0, 2)).abs().numpy()
    return sizes / (model.n_layers - 1)


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "architecture",
    [
        *architectures("gpt2", "neox", "llama", "gemma", "qwen"),
        *(pytest.param(name, marks=[pytest.mark.slow, only_on_4]) for name in ("gemma3", "granite", "bloom")),
    ],
)
def test_each_layer_is_dropped_in_turn(tiny, pairs, architecture):
    model = mh.load(tiny(architecture), dtype=torch.float64)
    for site in SITES:
        found = attribution_patch(model, pairs, site=site, grad_drop=True, **QUIET)
        close(found.values, wanted(model, pairs, site))
    noising = attribution_patch(model, pairs, direction="noising", grad_drop=True, **QUIET)
    close(noising.values, wanted(model, pairs, "z", way=1))


def test_it_differs_from_the_size_of_the_plain_estimate(llama, pairs):
    plain, drop = (attribution_patch(llama, pairs, grad_drop=each, **QUIET).values for each in (False, True))
    assert float(np.abs(np.abs(plain) - drop)[:2].max()) > 0.01


@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=only_on_3)])
def test_both_kinds_of_model_give_the_definition(tiny, pairs, backend):
    model = mh.load(tiny("gpt2"), backend=backend, dtype=torch.float64)
    close(attribution_patch(model, pairs, grad_drop=True, **QUIET).values, wanted(model, pairs, "z"))


def test_heads_of_the_last_layer_have_the_size_of_the_plain_estimate(llama, pairs):
    plain = attribution_patch(llama, pairs, **QUIET).values
    last = llama.n_layers - 1
    drop = attribution_patch(llama, pairs, grad_drop=True, **QUIET).values
    np.testing.assert_allclose(drop[last], np.abs(plain[last]), rtol=1e-5)
    alone = attribution_patch(llama, pairs, heads=[(last, 1)], grad_drop=True, **QUIET).values
    np.testing.assert_allclose(alone[last, 1], drop[last, 1], rtol=1e-5)


@pytest.mark.parametrize("site", ["z", "k"])
def test_some_heads_and_every_position(llama, pairs, site):
    options = {"site": site, "positions": "each", "grad_drop": True, **QUIET}
    every = attribution_patch(llama, pairs, **options).values
    some = attribution_patch(llama, pairs, heads=[(1, 2), (2, 0)], **options).values
    np.testing.assert_allclose(some[1, 2], every[1, 2], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(some[2, 0], every[2, 0], rtol=1e-4, atol=1e-6)
    assert np.isnan(some[0]).all() and (every.fillna(0) >= 0).all()
    if site == "z":
        last = attribution_patch(llama, pairs, positions="last", grad_drop=True, **QUIET).values
        np.testing.assert_allclose(every[:, :, -1, 1], last[:, :, 1], rtol=1e-4, atol=1e-6)


DIRECT, LOUD = 2, 27
"""L0H1 writes 6 z to the logits, and its z at " is" is 1/3; the keys of L1H0 are 27 times what it writes."""
FRANCE, ITALY, QUERY, MOVED, PARIS, ROME = range(6)


@torch.no_grad()
def cancelling(*, through_keys: bool) -> Blank:
    """A head whose direct effect on the logits and whose effect through the next layer cancel.

    The pair is of "the Italy is" (base) and "the France is". L0H1 attends evenly, so its z at the three tokens is
    0, 1/2 and 1/3 of its country, and it writes 6 z to the country's capital: denoising moves the logit difference by
    2 + 2 = 4 directly. It also writes z of France to "moved".

    Through values, everything is linear: L1H0 attends evenly to "moved" and writes -14.4 times its mean,
    -14.4 * (0 + 1/2 + 1/3)/3 = -4, to the logit of Paris.
    Through keys, the scores of L1H0 are 27 "moved", and it reads QUERY, which is 1, 2 and 1, and writes it -2 times to
    the logit of Paris. At the base run its weights are 1/3 each and "moved" is 0. The slope is
    -2 * 27 * (1/3) * ((2 - 4/3)/2 + (1 - 4/3)/3) = -4. Far from the base run the weights saturate.
    """
    blank = Blank()
    blank.embedding[:, QUERY] = 1
    for country, coordinate in ((" France", FRANCE), (" Italy", ITALY)):
        blank.embedding[blank.token(country), [coordinate, QUERY]] = torch.tensor([1.0, 2.0])
    blank.unembedding[blank.token(" Paris"), PARIS] = 1
    blank.unembedding[blank.token(" Rome"), ROME] = 1
    first, second = blank.attention
    for i, (country, capital) in enumerate(((FRANCE, PARIS), (ITALY, ROME))):
        first.v_proj.weight[i, country] = 1
        first.o_proj.weight[capital, 4 * 1 + i] = 6
    first.o_proj.weight[MOVED, 4 * 1] = 1
    if through_keys:
        second.q_proj.weight[1, QUERY] = 1
        second.k_proj.weight[1, MOVED] = 2 * LOUD
    second.v_proj.weight[0, QUERY if through_keys else MOVED] = 1
    second.o_proj.weight[PARIS, 0] = -2 if through_keys else -14.4
    return blank


@pytest.mark.parametrize("through_keys", [False, True])
def test_effects_that_cancel(tmp_path, through_keys):
    model = cancelling(through_keys=through_keys).load(tmp_path / "model")
    pair = mh.PromptPairs([" the France is"], [" the Italy is"], [" Paris"], [" Rome"])
    at = (0, 1)
    plain = attribution_patch(model, pair, **QUIET).scores.values
    drop = attribution_patch(model, pair, grad_drop=True, **QUIET).scores.values
    exact = mh.activation_patch(model, pair, **QUIET).scores.values
    assert plain[at] == pytest.approx(0, abs=1e-3)
    assert drop[at] == pytest.approx(2 * DIRECT, abs=1e-3)
    moved, weights = np.array([0, 1 / 2, 1 / 3]), np.array([1, 2, 1])
    strength = np.exp(LOUD * moved)
    indirect = -2 * ((strength * weights).sum() / strength.sum() - 4 / 3) if through_keys else -2 * DIRECT
    assert exact[at] == pytest.approx(2 * DIRECT + indirect, abs=1e-3)
    assert math.isclose(exact[at], 0, abs_tol=1e-3) != through_keys


def test_what_the_result_says(llama, pairs):
    found = attribution_patch(llama, pairs, grad_drop=True, **QUIET)
    assert found.name == "attribution patching of z, denoising, size by GradDrop"
    assert found.kind == "grad_drop" and found.unit == "logits" and "2403.00745" in found.citation()
    assert found.provenance["grad_drop"] is True and found.provenance["steps"] is None
    assert np.isnan(found.dataset["p_value"]).all() and (found.dataset["values"] >= 0).all()
    plain = attribution_patch(llama, pairs, **QUIET)
    assert plain.provenance["grad_drop"] is False and np.isfinite(plain.dataset["p_value"]).all()


def test_prompts_in_parts_and_on_disk_give_the_same(llama, pairs):
    whole = attribution_patch(llama, pairs, site="q", grad_drop=True, **QUIET)
    for budget in (1, Limits(tokens=1)):
        parts = attribution_patch(llama, pairs, site="q", grad_drop=True, budget=budget, **QUIET)
        np.testing.assert_allclose(parts.values, whole.values, atol=1e-5)


def test_the_gradients_go_to_disk_if_they_do_not_fit(llama, pairs):
    z = HeadCache.estimate(llama, pairs.tokens(llama)[0], sites=("z",)).sites["z"]
    job = make_ready(llama, Spec(pairs, mh.Patch(), as_metric("logit_diff"), base="corrupted"), **QUIET)
    kept = sum(HeadCache.estimate(llama, run.tokens, sites=tuple(run.stores)).total for run in (job.base, job.source))

    def on_disk(way, memory):
        limited = make_ready(
            llama,
            Spec(pairs, mh.Patch(), as_metric("logit_diff"), base="corrupted", limits=Limits(memory=memory)),
            runs=job.runs,
            **QUIET,
        )
        return Size.of(limited, way.counts(range(llama.n_layers))).on_disk

    assert GradDrop(3).counts([0, 1, 2]) == [3, 1, 2] and GradDrop(3).counts([1]) == [1, 1]
    assert not on_disk(AtBase(), kept + z) and not on_disk(GradDrop(3), kept + 2 * z)
    assert on_disk(GradDrop(3), kept + 2 * z - 1)


def test_a_bar_counts_the_backward_passes(llama, pairs, capsys):
    attribution_patch(llama, pairs, grad_drop=True)
    assert "gradients:   0%|          | 0/3" in capsys.readouterr().err
    attribution_patch(llama, pairs)
    assert "gradients" not in capsys.readouterr().err


def broken_on_the_model(logits, context):
    if logits.requires_grad and logits.grad_fn.name() != "MulBackward0":
        raise RuntimeError("broken")
    return mh.logit_diff(logits, context)


def test_the_model_stays_as_it_is(tiny, pairs, monkeypatch):
    model = mh.load(tiny("gpt2"))
    before, grads = changes_on(model), [weight.grad for weight in model.model.parameters()]
    result = attribution_patch(model, pairs, grad_drop=True, **QUIET)
    with pytest.raises(RuntimeError, match="broken"):
        attribution_patch(model, pairs, metric=broken_on_the_model, grad_drop=True, **QUIET)
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "grad", stopped_at(3, torch.autograd.grad))
        with pytest.raises(KeyboardInterrupt):
            attribution_patch(model, pairs, grad_drop=True, **QUIET)
    assert changes_on(model) == before
    assert [weight.grad for weight in model.model.parameters()] == grads == [None] * len(grads)
    again = attribution_patch(model, pairs, grad_drop=True, **QUIET)
    np.testing.assert_array_equal(again.values, result.values)


def test_steps_and_grad_drop_exclude_each_other(llama, pairs, monkeypatch):
    monkeypatch.setattr(HeadCache, "run", None)
    with pytest.raises(ValueError, match="grad_drop and steps are given, but they are different ways"):
        attribution_patch(llama, pairs, grad_drop=True, steps=2, **QUIET)


def test_one_layer_has_nothing_to_drop(llama, pairs, monkeypatch):
    monkeypatch.setattr(HeadCache, "run", None)
    monkeypatch.setattr(llama, "n_layers", 1)
    with pytest.raises(ValueError, match=r"grad_drop: model .* has one layer"):
        attribution_patch(llama, pairs, grad_drop=True, **QUIET)


def test_a_flat_gradient_is_one_clear_error(llama, pairs):
    def saturated(logits, context):
        return mh.logit_diff(logits, context).clamp(-1e-9, 1e-9) * 1e9

    with pytest.raises(ValueError, match="saturated has a gradient of 0 at the unchanged run"):
        gradients_of(llama.cache(pairs.side("clean")), saturated, Watch((0, 1)), Size(2), GradDrop(3))
