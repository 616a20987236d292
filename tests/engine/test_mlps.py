"""MLPs beside the heads of a sweep, against TransformerLens' own forward pass with the MLP's output replaced."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
import mechheads.engine.run
from mechheads.engine.run import new_output
from mechheads.results.stats import q_values
from support import oracles
from support.levels import TWO_FIRST
from support.texts import CLEAN, PAIRS

ARCHITECTURES = TWO_FIRST

TOLERANCE = 1e-4


def with_mlp(model: mh.Model, ids: Tensor, layer: int, output: Tensor) -> Tensor:
    """Logits [pos, d_vocab] when the MLP of a layer gives ``output`` [pos, d_model]."""
    return oracles.forward(model, ids, [(oracles.mlp(layer), lambda _, hook: output[None])])[0]


@pytest.mark.parametrize("direction", ["denoising", "noising"])
@pytest.mark.parametrize(("positions", "places"), [("all", [None]), (["last", -2], [-1, -2])], ids=["all", "two"])
def test_patching_mlps_equals_one_full_forward_each(small, direction, positions, places):
    effect = mh.activation_patch(small, PAIRS, direction=direction, positions=positions, nodes="all")
    values = effect.dataset["mlp_values"].values.reshape(small.n_layers, len(places), len(PAIRS))
    clean, corrupted = PAIRS.tokens(small)
    base, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    for prompt in range(len(PAIRS)):
        ids, other = oracles.ids_of(base, prompt), oracles.ids_of(source, prompt)
        here, there = (oracles.activations(small, each) for each in (ids, other))
        before = oracles.logit_diff(oracles.forward(small, ids)[0], base, prompt)
        for layer in range(small.n_layers):
            old, new = here[oracles.mlp(layer)][0], there[oracles.mlp(layer)][0]
            for place, at in enumerate(places):
                logits = with_mlp(small, ids, layer, oracles.blend(old, new, at))
                expected = oracles.logit_diff(logits, base, prompt) - before
                assert values[layer, place, prompt] == pytest.approx(expected, abs=TOLERANCE)
    alone = mh.activation_patch(small, PAIRS, direction=direction, positions=positions)
    np.testing.assert_allclose(effect.scores.values, alone.scores.values, atol=1e-6)
    assert alone.mlps is None


def slope(model: mh.Model, tokens, prompt: int, layer: int, there: Tensor, embeddings: Tensor | None = None) -> float:
    """(new - old) . d logit difference / d MLP output, by TransformerLens and autograd alone."""
    kept: list[Tensor] = []

    def watch(value: Tensor, hook: object) -> Tensor:
        kept.append(value.detach().requires_grad_())
        return kept[0]

    hooks = [(oracles.mlp(layer), watch)]
    if embeddings is not None:
        hooks.insert(0, ("blocks.0.hook_resid_pre", lambda value, hook: embeddings))
    ids = oracles.ids_of(tokens, prompt)
    with torch.enable_grad():
        logits = model.model.run_with_hooks(ids, fwd_hooks=hooks)[0, -1]
        (gradient,) = torch.autograd.grad(logits[tokens.answer[prompt]] - logits[tokens.wrong[prompt]], kept)
    old = oracles.activations(model, ids)[oracles.mlp(layer)]
    return float(((there - old) * gradient).sum())


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_attribution_of_mlps_is_the_slope_of_one_forward_each(small, direction):
    found = mh.patching.attribution_patch(small, PAIRS, direction=direction, nodes="all")
    alone = mh.patching.attribution_patch(small, PAIRS, direction=direction)
    np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-4, atol=1e-5)
    clean, corrupted = PAIRS.tokens(small)
    base, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    for prompt in range(len(PAIRS)):
        other = oracles.activations(small, oracles.ids_of(source, prompt))
        for layer in range(small.n_layers):
            expected = slope(small, base, prompt, layer, other[oracles.mlp(layer)])
            got = float(found.dataset["mlp_values"][layer, prompt])
            assert got == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_attribution_of_mlps_in_parts_and_of_few_heads(small):
    whole = mh.patching.attribution_patch(small, PAIRS, nodes="all", steps=2)
    parts = mh.settings(budget="1 MB")(mh.patching.attribution_patch)(
        small, PAIRS, nodes="all", steps=2, heads=["L2H1"], positions="all"
    )
    np.testing.assert_allclose(parts.dataset["mlp_values"], whole.dataset["mlp_values"], rtol=1e-3, atol=1e-4)
    clean, corrupted = PAIRS.tokens(small)
    first, last = (embedded(small, oracles.ids_of(tokens, 0)) for tokens in (corrupted, clean))
    other = oracles.activations(small, oracles.ids_of(clean, 0))
    for layer in range(small.n_layers):
        there = other[oracles.mlp(layer)]
        each = [slope(small, corrupted, 0, layer, there, first + part * (last - first)) for part in (0.25, 0.75)]
        got = float(whole.dataset["mlp_values"][layer, 0])
        assert got == pytest.approx(np.mean(each), rel=1e-3, abs=1e-3)


def embedded(model: mh.Model, ids: Tensor) -> Tensor:
    """The residual stream before the first block [1, pos, d_model]."""
    kept: list[Tensor] = []
    oracles.forward(model, ids, [("blocks.0.hook_resid_pre", lambda value, hook: kept.append(value.clone()))])
    return kept[0]


@pytest.mark.parametrize("kind", ["zero", "mean", "scaled", "resample"])
def test_ablating_mlps_equals_one_full_forward_each(small, kind):
    rule = mh.patching.Scale(0.3) if kind == "scaled" else kind
    effect = mh.ablate(small, CLEAN, intervention=rule, nodes="all", seed=1)
    tokens = mh.Prompts(CLEAN).tokens(small)
    runs = [oracles.activations(small, oracles.ids_of(tokens, prompt)) for prompt in range(len(CLEAN))]
    for layer in range(small.n_layers):
        outputs = [run[oracles.mlp(layer)][0] for run in runs]
        new = {
            "zero": [torch.zeros_like(output) for output in outputs],
            "mean": [torch.cat(outputs).mean(0).expand_as(output) for output in outputs],
            "scaled": [0.3 * output for output in outputs],
        }.get(kind) or resampled(outputs, seed=1)
        for prompt, output in enumerate(new):
            ids = oracles.ids_of(tokens, prompt)
            expected = oracles.kl(oracles.forward(small, ids)[0], with_mlp(small, ids, layer, output))
            assert effect.dataset["mlp_values"].values[layer, prompt] == pytest.approx(expected, abs=TOLERANCE)


def resampled(outputs: list[Tensor], seed: int) -> list[Tensor]:
    """Each prompt gets the output of the one before it in a random order, whose last token serves for the rest."""
    order = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(seed)).tolist()
    donor = {order[i]: order[i - 1] for i in range(len(order))}
    return [
        torch.stack([outputs[donor[i]][min(at, len(outputs[donor[i]]) - 1)] for at in range(len(output))])
        for i, output in enumerate(outputs)
    ]


def test_mlps_have_intervals_and_share_q_values_with_the_heads(llama):
    effect = mh.activation_patch(llama, PAIRS, nodes="all")
    data = effect.dataset
    of_all = q_values(np.concatenate([data["p_value"].values.ravel(), data["mlp_p_value"].values]))
    np.testing.assert_array_equal(data["q_value"].values.ravel(), of_all[:12])
    np.testing.assert_array_equal(data["mlp_q_value"].values, of_all[12:])
    table = effect.mlps
    assert table is not None and list(table.index) == ["L0.mlp", "L1.mlp", "L2.mlp"]
    means = data["mlp_values"].values.mean(-1)
    np.testing.assert_allclose(table["score"], means)
    assert (table["ci_low"] <= means).all() and (means <= table["ci_high"]).all()
    assert "3 MLPs" in repr(effect) and effect.provenance["nodes"] == "all"


def test_a_share_restored_is_the_effect_divided_by_the_distance(llama):
    plain = mh.activation_patch(llama, PAIRS, nodes="all")
    share = mh.activation_patch(llama, PAIRS, nodes="all", normalize=True)
    ratio = plain.scores.values / share.scores.values
    np.testing.assert_allclose(plain.dataset["mlp_values"] / share.dataset["mlp_values"], ratio[0, 0], rtol=1e-4)


def test_mlps_survive_a_selection_and_a_figure(llama):
    effect = mh.activation_patch(llama, PAIRS, positions=["last", 1], nodes="all")
    one = effect.select(pos="last")
    assert one.mlps is not None and one.mlps["score"].tolist() == effect.dataset["mlp_score"].values[:, 0].tolist()
    figure = one.plot()
    heads, mlps = (trace for trace in figure.data if trace.type == "heatmap")
    np.testing.assert_array_equal(np.asarray(mlps.z)[0], one.mlps["score"])
    assert float(mlps.y[0]) == llama.n_heads + 0.5 and "L2.mlp" in mlps.text[0][2]
    assert figure.layout.yaxis.ticktext[-1] == "MLP"
    assert sum(trace.type == "heatmap" for trace in effect.plot().data) == 4
    (gap,) = figure.layout.shapes
    assert (gap.y0, gap.y1) == (llama.n_heads - 0.5, llama.n_heads) and len(effect.plot().layout.shapes) == 2
    assert np.asarray(heads.z).shape == (llama.n_heads, llama.n_layers)
    furthest = max(float(np.abs(part.z).max()) for part in (heads, mlps))
    assert figure.layout.coloraxis.cmax == pytest.approx(furthest)


def test_arithmetic_keeps_the_mlps_that_both_sides_have(llama):
    one, other = (mh.activation_patch(llama, PAIRS, direction=way, nodes="all") for way in ("denoising", "noising"))
    values = [each.dataset["mlp_values"].values for each in (one, other)]
    both, turned = one - other, other * -1
    np.testing.assert_array_equal(both.dataset["mlp_values"], values[0] - values[1])
    np.testing.assert_array_equal(turned.dataset["mlp_values"], -values[1])
    assert (one - mh.activation_patch(llama, PAIRS)).mlps is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nodes": "mlps"}, "nodes is 'mlps'; choose"),
        ({"intervention": mh.Patch("q")}, "an MLP has no q"),
        ({"intervention": lambda z, context: -z}, "is a rule for heads"),
    ],
)
def test_what_mlps_cannot_do_is_said_before_any_run(llama, arguments, message, monkeypatch):
    monkeypatch.setattr(type(llama.backend), "run", lambda *args, **more: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match=message):
        mh.sweep(llama, PAIRS, **{"intervention": mh.Patch(), "nodes": "all"} | arguments)


def test_the_plan_counts_mlps(small):
    given = {"intervention": mh.Zero(), "heads": ["L2H1"]}
    heads, plan = mh.plan(small, CLEAN, **given), mh.plan(small, CLEAN, nodes="all", **given)
    n, d, pos = len(CLEAN), small.d_model, plan.pos
    assert (plan.units, plan.mlps, plan.mlp_waves) == (1 + small.n_layers, small.n_layers, 1)
    assert plan.blocks == heads.blocks + 3 + 2 + 1
    block = 2 * n * pos * (small.backend.block_parameters() + 2 * small.n_heads * small.d_head * pos)
    assert plan.flops == pytest.approx(heads.flops + (3 + 2 + 1) * block + 3 * 2 * n * d * small.d_vocab)
    assert plan.forwards / heads.forwards == pytest.approx(plan.flops / heads.flops)
    assert plan.seconds is not None and plan.seconds > 0
    assert f"(1 head and {small.n_layers} MLPs x 1 place" in repr(plan) and "; 1 more for MLPs" in repr(plan)


def test_a_patch_without_a_source_run_is_refused_where_it_is_computed(llama):
    job = mh.prepare(llama, CLEAN, sites=("z", "mlp_out"))
    with pytest.raises(ValueError, match=r"^Patch takes values from the source run of a pair; give mh\.PromptPairs"):
        new_output(job.intervening(mh.Patch()), 0, 0)
