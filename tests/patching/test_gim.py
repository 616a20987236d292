"""GIM is the gradient of transformers' own model in which every change is written into the forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mechheads as mh
from benchmarks.tiny_families import build
from mechheads.limits import Limits
from mechheads.model.backends.frozen_norms import find_norms
from mechheads.model.backends.temporary_changes import Forward
from mechheads.patching import gim
from mechheads.patching.attribution import attribution_patch
from mechheads.patching.gim import Gim, tempered
from mechheads.patching.gradients import AtBase
from mechheads.runs.head_cache import HeadCache
from mechheads.testing import compiled_model
from support import oracles
from support.architectures import architectures
from support.ctrl_c import stopped_at
from support.interrupts import changes_on
from support.plain_gim import PlainGim
from support.releases import only_on_3, only_on_4
from support.texts import CAPITALS_PAIRS

pytestmark = pytest.mark.transformerlens

QUIET = {"progress": False}
PAIRS = CAPITALS_PAIRS


@pytest.fixture(scope="module")
def llama(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


def wanted(model, plain, direction="denoising"):
    """The definition for each prompt [layer, head, prompt], and for MLPs [layer, prompt]."""
    clean, corrupted = PAIRS.tokens(model)
    runs = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    found = [
        plain.attribution(
            *(oracles.ids_of(run, prompt) for run in runs), int(clean.answer[prompt]), int(clean.wrong[prompt])
        )
        for prompt in range(len(PAIRS))
    ]
    return tuple(torch.stack(each, dim=-1).numpy() for each in zip(*found, strict=True))


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "architecture",
    [
        *architectures("gpt2", "llama", "neox", "gemma", "qwen"),
        *(pytest.param(name, marks=[pytest.mark.slow, only_on_4]) for name in ("gemma3", "granite")),
    ],
)
def test_it_is_the_gradient_of_plain_transformers_with_the_changes_written_out(tiny, architecture):
    model, plain = mh.load(tiny(architecture), dtype=torch.float64), PlainGim(architecture, tiny(architecture))
    for direction in ("denoising", "noising"):
        found = attribution_patch(model, PAIRS, direction=direction, gim=True, **QUIET)
        close(found.values, wanted(model, plain, direction)[0])
    usual = attribution_patch(model, PAIRS, direction="noising", **QUIET)
    old, new = (np.asarray(each.values) for each in (usual, found))
    assert np.abs(old - new).max() > 0.1 * np.abs(old).max()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
@pytest.mark.parametrize("backend", ["bridge", pytest.param("hooked", marks=only_on_3)])
def test_both_kinds_of_model_and_mlps(tiny, architecture, backend):
    model = mh.load(tiny(architecture), backend=backend, dtype=torch.float64)
    found = attribution_patch(model, PAIRS, gim=True, nodes="all", **QUIET)
    heads, mlps = wanted(model, PlainGim(architecture, tiny(architecture)))
    close(found.values, heads)
    close(found.dataset["mlp_values"], mlps)


def test_softmax_has_its_gradient_at_temperature_2():
    """Two tokens with the same value: each looks as if it did nothing. p = 0.49832, 0.49832, 0.00336."""
    scores = torch.tensor([5.0, 5, 0, -torch.inf], dtype=torch.float64, requires_grad=True)
    values = torch.tensor([1.0, 1, 0, 7], dtype=torch.float64)
    pattern = scores.softmax(-1)
    (usual,) = torch.autograd.grad(pattern, scores, values, retain_graph=True)
    (found,) = torch.autograd.grad(pattern, scores, tempered(pattern, values))
    np.testing.assert_allclose(usual[:2], 0.49832 * (1 - 0.99664), atol=1e-5)
    np.testing.assert_allclose(found, [0.48029 * 0.03942, 0.48029 * 0.03942, -0.03942 * 0.96058, 0], atol=1e-5)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min])
def test_softmax_of_large_and_masked_scores(masked):
    generator = torch.Generator().manual_seed(0)
    scores = 30 * torch.randn(5, 7, generator=generator)
    scores[1, 3:] = masked
    scores.requires_grad_()
    slope, pattern = torch.randn(5, 7, generator=generator), scores.softmax(-1)
    (found,) = torch.autograd.grad(pattern, scores, tempered(pattern, slope))
    (exact,) = torch.autograd.grad(2 * (scores / 2).softmax(-1), scores, slope)
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_without_its_changes_it_is_the_usual_gradient(llama, monkeypatch):
    monkeypatch.setattr(gim, "TEMPERATURE", 1.0)
    monkeypatch.setattr(gim, "SHARES", dict.fromkeys(gim.SHARES, 1.0))
    monkeypatch.setattr(Gim, "of", classmethod(lambda cls, model: cls((), ())))
    found, usual = (attribution_patch(llama, PAIRS, gim=each, **QUIET).values for each in (True, False))
    np.testing.assert_allclose(found, usual, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "count"),
    [("gpt2", 7), ("llama", 7), ("neox", 7), ("gemma", 13), ("qwen", 13), pytest.param("bloom", 8, marks=only_on_4)],
)
def test_every_norm_is_found(tiny, architecture, count):
    """Two or four for each of three layers, two of q and k, the final one; Bloom has one after its embedding."""
    model = mh.load(tiny(architecture))
    norms = find_norms(model.backend)
    layer_norms = architecture in ("gpt2", "neox", "bloom")
    assert len(norms) == count
    assert {norm.centred for norm in norms} == {layer_norms}
    assert {norm.bias is not None for norm in norms} == {layer_norms}


def test_it_finds_a_head_that_works_through_a_saturated_softmax():
    """The norms of compiled models also show that one whose scale hardly changes is a norm."""
    made = compiled_model("induction")
    usual, found = (attribution_patch(made.model, made.pairs(3), gim=each, **QUIET).scores for each in (False, True))
    assert [at for at, score in np.ndenumerate(found) if abs(score) > 0.01] == [(0, 2), (1, 3)]
    assert float(found[0, 2]) > 50 * float(usual[0, 2]) > 0


def test_a_norm_that_does_not_divide_by_a_scale_is_refused(llama):
    odd = Forward(find_norms(llama.backend)[0].module, torch.exp)
    with pytest.raises(ValueError, match=r"^gim: model: .* has a \w*RMSNorm that is not a norm: .* so leave gim out$"):
        llama.backend.changes.during([odd], lambda: Gim.of(llama))


def test_the_forward_pass_is_the_same(tiny):
    seen = {}

    def watched(name):
        def metric(logits, context):
            if logits.requires_grad:
                seen[name] = logits.detach().clone()
            return mh.logit_diff(logits, context)

        return metric

    for architecture in ("gpt2", "llama"):
        model = mh.load(tiny(architecture), attn_implementation="eager")
        for changed in (True, False):
            attribution_patch(model, PAIRS, metric=watched(changed), gim=changed, **QUIET)
        assert torch.equal(seen[True], seen[False])


def test_some_heads_each_position_and_other_sites(llama):
    every = attribution_patch(llama, PAIRS, gim=True, positions="each", **QUIET).values
    some = attribution_patch(llama, PAIRS, heads=[(1, 2), (2, 0)], gim=True, positions="each", **QUIET).values
    np.testing.assert_allclose(some[1, 2], every[1, 2], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(some[2, 0], every[2, 0], rtol=1e-4, atol=1e-5)
    whole = attribution_patch(llama, PAIRS, gim=True, **QUIET).values
    np.testing.assert_allclose(np.nansum(every, axis=2), whole, rtol=1e-4, atol=1e-4)
    assert np.isfinite(attribution_patch(llama, PAIRS, site="q", gim=True, **QUIET).values).all()


def test_what_the_result_says(llama):
    found = attribution_patch(llama, PAIRS, gim=True, **QUIET)
    assert found.name == "attribution patching of z, denoising, GIM"
    assert found.kind == "gim" and found.unit == "logits" and "2505.17630" in found.citation()
    assert found.provenance["gim"] is True and np.isfinite(found.dataset["p_value"]).all()
    assert attribution_patch(llama, PAIRS, **QUIET).provenance["gim"] is False


def test_prompts_in_parts_give_the_same(llama):
    whole = attribution_patch(llama, PAIRS, gim=True, **QUIET)
    for budget in (1, Limits(tokens=1)):
        parts = attribution_patch(llama, PAIRS, gim=True, budget=budget, **QUIET)
        np.testing.assert_allclose(parts.values, whole.values, atol=1e-5)


def broken_on_the_model(logits, context):
    if logits.requires_grad and logits.grad_fn.name() != "MulBackward0":
        raise RuntimeError("broken")
    return mh.logit_diff(logits, context)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_model_stays_as_it_is(tiny, architecture, monkeypatch):
    model = mh.load(tiny(architecture))
    before = changes_on(model)
    result = attribution_patch(model, PAIRS, gim=True, **QUIET)
    with pytest.raises(RuntimeError, match="broken"):
        attribution_patch(model, PAIRS, metric=broken_on_the_model, gim=True, **QUIET)
    with monkeypatch.context() as patched:
        patched.setattr(torch.autograd, "grad", stopped_at(3, torch.autograd.grad))
        with pytest.raises(KeyboardInterrupt):
            attribution_patch(model, PAIRS, gim=True, **QUIET)
    assert changes_on(model) == before
    again = attribution_patch(model, PAIRS, gim=True, **QUIET)
    np.testing.assert_array_equal(again.values, result.values)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"steps": 2}, "gim and steps"),
        ({"grad_drop": True}, "grad_drop and gim"),
        ({"grad_drop": True, "steps": 2}, "grad_drop and gim and steps"),
    ],
)
def test_one_way_at_a_time(llama, monkeypatch, options, names):
    monkeypatch.setattr(HeadCache, "run", None)
    with pytest.raises(
        ValueError, match=f"^{names} are given, but they are different ways to take gradients; keep one"
    ):
        attribution_patch(llama, PAIRS, gim=True, **options, **QUIET)


@only_on_4
@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("mixtral", "has no MLP of the form .* in layer 0; it may have experts"),
        ("gpt-oss", "has no MLP of the form .* in layer 0; it may have experts"),
    ],
)
def test_what_it_is_not_defined_for_is_refused(tmp_path, monkeypatch, family, why):
    build(family, tmp_path / family)
    model = mh.load(tmp_path / family)
    pairs = mh.PromptPairs([[5, 6, 7]], [[5, 8, 7]], [9], [10])
    monkeypatch.setattr(HeadCache, "run", None)
    with pytest.raises(ValueError, match=f"^gim: model: .* {why}; GIM is not defined for it, so leave gim out$"):
        attribution_patch(model, pairs, gim=True, **QUIET)


def test_gates_and_sinks_are_refused(llama, monkeypatch):
    assert isinstance(Gim.of(llama), AtBase)
    z = llama.backend.hook_name("z", 1)
    monkeypatch.setattr(type(llama.backend), "carries_hooks", False)
    pattern = llama.backend.hook_name("pattern", 1)
    for name, change, why in (
        (z, lambda value, hook: 0.9 * value, "in layer 1 .* z is not the pattern times v"),
        (pattern, lambda value, hook: 0.9 * value, "in layer 1 .* patterns do not sum to 1"),
    ):
        with pytest.raises(ValueError, match=why):
            llama.backend.under([(name, change)], lambda: Gim.of(llama))
