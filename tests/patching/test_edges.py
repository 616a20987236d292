"""Edge attribution against plain derivatives of every edge, the estimates of nodes, and results by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.patching import attribute_edges, attribution_patch
from mechheads.patching.edges.edge_scores import EdgeScores
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.results.stats import clustered_interval
from support import oracles
from support.levels import architectures
from support.micro import micro, pair  # noqa: F401
from support.plain_edges import PlainEdges
from support.releases import only_on_3, only_on_4
from support.settled import settled
from support.texts import CAPITALS_PAIRS, PAIRS

LATER = [pytest.param(name, marks=[only_on_4, pytest.mark.release]) for name in ("gemma3", "qwen", "granite", "bloom")]
ARCHITECTURES = [*architectures("llama", "neox", "gpt2", "gemma"), *LATER]


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny(request.param), dtype=torch.float64)


@pytest.fixture(scope="module")
def found(llama: mh.Model) -> EdgeScores:
    return attribute_edges(llama, PAIRS, by_prompt=True)


def close(one: Any, other: Any) -> None:
    """float32 sums over positions and d_model."""
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.nanmax(np.abs(other)))


def difference(logits: Tensor, answer: int, wrong: int) -> Tensor:
    return logits[:, -1, answer] - logits[:, -1, wrong]


def test_every_edge_is_the_derivative_along_it_alone(small: mh.Model):
    clean, corrupted = CAPITALS_PAIRS.tokens(small)
    assert clean.answer is not None and clean.wrong is not None
    measure = partial(difference, answer=int(clean.answer[0]), wrong=int(clean.wrong[0]))
    plain = PlainEdges(small, oracles.ids_of(clean, 0), oracles.ids_of(corrupted, 0), measure).scores()
    scores = attribute_edges(small, CAPITALS_PAIRS, by_prompt=True)
    assert scores.values is not None and scores.n_edges == len(plain)
    expected = np.full(scores.score.shape, np.nan)
    for (sender, receiver), value in plain.items():
        expected[scores.senders.index(sender), scores.receivers.index(receiver)] = value
    close(scores.values[..., 0], expected)


@pytest.mark.parametrize("steps", [None, 2])
def test_the_edges_out_of_a_node_add_up_to_its_estimate(small: mh.Model, steps: int | None):
    edges = attribute_edges(small, PAIRS, steps=steps, by_prompt=True)
    nodes = attribution_patch(small, PAIRS, direction="noising", nodes="all", steps=steps)
    assert edges.values is not None and nodes.values is not None
    total = dict(zip(edges.senders, np.nansum(edges.values, axis=1), strict=True))
    for layer in range(small.n_layers):
        heads = np.stack([total[f"L{layer}H{head}"] for head in range(small.n_heads)])
        close(heads, nodes.values[layer].values)
        close(total[f"L{layer}.mlp"], nodes.dataset["mlp_values"].values[layer])


def test_edges_of_a_model_worked_out_by_hand(micro: mh.Model, pair: mh.PromptPairs):
    """See ``support.micro``: from the France run towards the Italy run, all that follows a head is linear."""
    scores = attribute_edges(micro, pair)

    def edge(sender: str, receiver: str) -> float:
        return scores.score[scores.senders.index(sender), scores.receivers.index(receiver)]

    assert edge("L0H1", "logits") == pytest.approx(-2 - 2, abs=1e-3)
    assert edge("L1H0", "logits") == pytest.approx(-13.5 - 13, abs=1e-3)
    assert edge("L0H0", "L1H0.v") == pytest.approx(-13.5 - 13, abs=1e-3)
    assert edge("input", "L0H1.v") == pytest.approx(-2 - 2, abs=1e-3)
    # Italy's value under France's weights: Paris loses 13.5, and Rome gets it.
    assert edge("input", "L0H0.v") == pytest.approx(-13.5 - 13.5, abs=1e-3)
    # The query at token 1 is 1 more. Its weight on France is w = 3/4, dw/dq = ln 3 w (1 - w); Paris gets 10 z.
    assert edge("input", "L0H0.q") == pytest.approx(10 * math.log(3) * 3 / 16, abs=1e-3)
    # The key of token 1 is ln 2 - ln 3 more. dw/dk = w (1 - w) at token 1, with w = 3/4, and at token 2, with w = 3/5.
    assert edge("input", "L0H0.k") == pytest.approx(10 * (math.log(2) - math.log(3)) * (3 / 16 + 6 / 25), abs=1e-3)
    # Head 1 shares key and value with head 0. It has no query; and head 3 shares head 2's.
    for unused in ("L0H1.k", "L0H1.q", "L0H2.v", "L1H1.v", "L0H3.k"):
        assert edge("input", unused) == pytest.approx(0, abs=1e-3)


@only_on_4
@pytest.mark.parametrize("architecture", ["gpt2", "neox"])
def test_transformerlens_own_edges_are_the_same(loaded: Callable[[str], mh.Model], architecture: str):
    """Its gradients are those of the run it calls corrupt, for each position; it takes no grouped queries."""
    from transformer_lens.tools.analysis import attribution_patching as theirs

    model = loaded(architecture)
    scores = attribute_edges(model, CAPITALS_PAIRS, by_prompt=True)
    clean, corrupted = CAPITALS_PAIRS.tokens(model)
    assert clean.answer is not None and clean.wrong is not None and scores.values is not None
    measure = partial(difference, answer=int(clean.answer[0]), wrong=int(clean.wrong[0]))
    config = theirs.EdgeAttributionConfig(granularity="edge")
    one, other = (oracles.ids_of(side, 0) for side in (corrupted, clean))
    found = theirs.attribution_patch(model.model, one, other, lambda logits: measure(logits)[0], config)
    expected = np.where(EdgeGraph.of(model).edges, 0, np.nan)
    for (writer, reader), score in found.edge_scores.items():
        expected[scores.senders.index(named(writer)), scores.receivers.index(named(reader))] += score
    np.testing.assert_allclose(scores.values[..., 0], expected, rtol=1e-3, atol=1e-3)


def named(node: Any) -> str:
    """Our name of a node of TransformerLens' graph."""
    if node.kind in ("embed", "logits"):
        return {"embed": "input"}.get(node.kind, node.kind)
    if node.kind.startswith("mlp"):
        return f"L{node.layer}.mlp"
    site = node.kind[0]
    return f"L{node.layer}H{node.head}" + (f".{site}" if site in "qkv" else "")


@only_on_3
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "neox"])
def test_it_equals_the_gradients_at_split_inputs(tiny: Callable[[str], Path], architecture: str):
    """As EAP-IG computes edges: gradients at TransformerLens' hooks for the inputs of single heads and of MLPs."""
    model = mh.load(tiny(architecture))
    scores = attribute_edges(model, CAPITALS_PAIRS, by_prompt=True)
    changes = PlainEdges(model, *(oracles.ids_of(each, 0) for each in CAPITALS_PAIRS.tokens(model)), torch.sum)
    changes.here, changes.there = (oracles.activations(model, ids) for ids in (changes.ids, changes.other))
    delta = torch.cat(list(changes.changes().values()))
    hooked, clean = model.model, CAPITALS_PAIRS.tokens(model)[0]
    hooked.set_ungroup_grouped_query_attention(True)
    hooked.set_use_split_qkv_input(True)
    hooked.set_use_hook_mlp_in(True)
    slopes: dict[str, Tensor] = {}
    names = [
        f"blocks.{layer}.hook_{site}" for layer in range(3) for site in ("q_input", "k_input", "v_input", "mlp_in")
    ]
    names.append("blocks.2.hook_resid_post")
    hooked.reset_hooks()
    for name in names:
        hooked.add_hook(name, lambda slope, hook: slopes.update({hook.name: slope}), dir="bwd")
    assert clean.answer is not None and clean.wrong is not None
    with torch.enable_grad():
        difference(hooked(changes.ids), int(clean.answer[0]), int(clean.wrong[0])).sum().backward()
    hooked.reset_hooks()
    rows = [slopes[name].movedim(2, 0)[:, 0] if "_input" in name else slopes[name] for name in names]
    expected = torch.einsum("spm,rpm->sr", delta, torch.cat(rows)).numpy()
    assert scores.values is not None
    close(scores.values[..., 0], np.where(np.isfinite(scores.score), expected, np.nan))


def test_the_graph_has_the_edges_of_mibs_graph():
    graph = EdgeGraph(12, 12, mlps=True, parallel=False)
    assert graph.n_edges == 32491 and (len(graph.senders), len(graph.receivers)) == (157, 445)
    alike = EdgeGraph(12, 12, mlps=True, parallel=True)
    assert graph.n_edges - alike.n_edges == 12 * 12
    heads = EdgeGraph(2, 2, mlps=False, parallel=False)
    assert heads.senders == ("input", "L0H0", "L0H1", "L1H0", "L1H1") and heads.n_edges == 6 + 18 + 5


def test_means_and_intervals_are_over_clusters(llama: mh.Model, found: EdgeScores):
    assert found.values is not None
    values = found.values[found.senders.index("L0.mlp"), found.receivers.index("L2H1.v")].astype(np.float64)
    low, high = map(float, clustered_interval(values))
    row = found.table.query("sender == 'L0.mlp' and receiver == 'L2H1' and input == 'v'").iloc[0]
    assert row[["score", "ci_low", "ci_high"]].tolist() == pytest.approx([values.mean(), low, high])
    together = mh.PromptPairs(
        PAIRS.clean, PAIRS.corrupted, answer=PAIRS.answer, wrong=PAIRS.wrong, cluster=["one", "one", "other"]
    )
    assert np.isnan(attribute_edges(llama, together).ci_low).all()


def test_the_table_has_a_row_for_each_edge(found: EdgeScores):
    table = found.table
    sizes = np.abs(table["score"].to_numpy())
    assert len(table) == found.n_edges and (np.diff(sizes) <= 0).all()
    assert set(table["input"]) == {"q", "k", "v", ""}
    assert found.top(3).equals(table.head(3))
    by_score = found.top(5, by="score")["score"]
    assert list(by_score) == sorted(by_score, reverse=True) and by_score.iloc[0] == np.nanmax(found.score)
    first = table.iloc[0]
    assert f"the largest are {first['sender']}->{first['receiver']}" in repr(found)
    assert first["sender"] in found._repr_html_() and "2403.17806" in found.citation()
    assert found.unit == "logits" and found.name == "edge attribution, noising"


def test_nodes_have_the_size_of_their_outgoing_edges(found: EdgeScores):
    nodes = found.nodes()
    sizes = np.nansum(np.abs(found.score), axis=1)
    assert nodes["L1H2"]["score"] == pytest.approx(sizes[found.senders.index("L1H2")])
    assert nodes.mlps is not None
    assert nodes.mlps.at["L1.mlp", "score"] == pytest.approx(sizes[found.senders.index("L1.mlp")])


def test_a_prepared_job_gives_the_same(llama: mh.Model, found: EdgeScores):
    again = attribute_edges(mh.prepare(llama, PAIRS))
    np.testing.assert_allclose(again.score, found.score, atol=1e-5)
    assert again.values is None


def test_padding_changes_nothing(llama: mh.Model, found: EdgeScores):
    alone = mh.PromptPairs(PAIRS.clean[:1], PAIRS.corrupted[:1], answer=[" Paris"], wrong=[" Rome"])
    np.testing.assert_allclose(attribute_edges(llama, alone).score, found.values[..., 0], atol=1e-5)  # type: ignore[index]


def test_steps_average_over_points_between_the_runs(llama: mh.Model):
    several = [attribute_edges(llama, PAIRS, steps=steps) for steps in (1, 20, 40)]
    assert several[1].name == "edge attribution, noising, 20 steps" and several[1].provenance["steps"] == 20
    off = [np.nanmax(np.abs(each.score - several[2].score)) for each in several[:2]]
    assert off[1] < off[0] / 20


def test_a_block_that_does_more_than_add_is_one_clear_error(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    model = mh.load(tiny("llama"))

    def halved(rows: int, pos: int, blocks: Any = model.backend.blocks_for) -> Any:
        whole = blocks(rows, pos)
        return lambda layer, residual, *more: whole(layer, residual, *more) / (2 if layer == 1 else 1)

    monkeypatch.setattr(model.backend, "blocks_for", halved)
    with pytest.raises(ValueError, match=r"layer 1 of .* does more to the residual stream than add to it"):
        attribute_edges(model, PAIRS)


def steep(logits: Tensor, context: Any) -> Tensor:
    return (logits - context.base_logits)[:, -1, 0].abs().sqrt()


def flat(logits: Tensor, context: Any) -> Tensor:
    return logits[:, -1, 0].clamp(min=1e6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": mh.patching.accuracy}, "metric accuracy has no gradient"),
        ({"metric": mh.kl_divergence}, "metric kl_divergence is a distance from the base run"),
        ({"metric": steep}, "metric steep has a gradient that is not finite"),
        ({"metric": flat}, "metric flat has a gradient of 0"),
        ({"steps": 0}, "steps is 0"),
        ({"budget": 900}, "budget is 900 B, but the scores of 262 edges for 3 prompts take"),
        ({"pairs": [" The capital"]}, "edge attribution patching needs mh.PromptPairs"),
    ],
)
def test_bad_requests_are_one_clear_error(llama: mh.Model, change: dict[str, Any], message: str):
    asked = {"pairs": PAIRS} | change
    with pytest.raises(ValueError, match=message):
        settled(attribute_edges)(llama, **asked)
