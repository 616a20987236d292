"""Circuits of edges by size against plain runs of one circuit, circuits of nodes, and paths through a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.limits import Limits
from mechheads.patching import attribute_edges, edge_curve, faithfulness
from mechheads.patching.edges.edge_scores import EdgeScores
from mechheads.patching.edges.graph import EdgeGraph
from support import oracles
from support.levels import few
from support.plain_edge_circuits import circuit_logits, split_logits
from support.releases import only_on_3, only_on_4
from support.texts import PAIRS

SOME = (0.1, 0.5, 0.9)
LATER = [pytest.param(name, marks=[only_on_4, pytest.mark.release]) for name in ("qwen", "bloom")]


@pytest.fixture(scope="module", params=[*few(("llama", "neox", "gpt2"), "llama"), *LATER])
def small(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny(request.param), dtype=torch.float64)


@pytest.fixture(scope="module")
def scores(llama: mh.Model) -> EdgeScores:
    return attribute_edges(llama, PAIRS)


def made_scores(model: mh.Model, inside: Iterable[tuple[str, str]]) -> EdgeScores:
    """Scores of 1 for some edges and 0 for all others."""
    graph = EdgeGraph.of(model)
    score = np.where(graph.edges, 0.0, np.nan)
    for sender, receiver in inside:
        score[graph.senders.index(sender), graph.receivers.index(receiver)] = 1.0
    return EdgeScores(graph.senders, graph.receivers, score, score, score, None, "made", "logits", {})


def edges_out_of(graph: EdgeGraph, *senders: str) -> list[tuple[str, str]]:
    places = [(sender, receiver) for sender, receiver in np.argwhere(graph.edges) if graph.senders[sender] in senders]
    return [(graph.senders[sender], graph.receivers[receiver]) for sender, receiver in places]


def edges_of(order: Iterable[Any]) -> list[tuple[str, str]]:
    return [tuple(edge.split("->")) for edge in order]


def plain_values(model: mh.Model, edges: set[tuple[str, str]], logits_of: Callable[..., Any]) -> np.ndarray:
    """The logit difference of a circuit for each pair, from a plain run."""
    clean, corrupted = PAIRS.tokens(model)
    assert clean.answer is not None and clean.wrong is not None
    values = []
    for prompt in range(len(clean)):
        logits = logits_of(model, oracles.ids_of(clean, prompt), oracles.ids_of(corrupted, prompt), edges)[0, -1]
        values.append(float(logits[clean.answer[prompt]] - logits[clean.wrong[prompt]]))
    return np.array(values)


def test_every_point_is_a_plain_run_of_that_circuit(small: mh.Model):
    ranking = attribute_edges(small, PAIRS)
    found = mh.settings(seed=1)(edge_curve)(small, PAIRS, ranking, sizes=SOME, draws=1)
    for ks, (name, order) in zip(found.table.groupby("which", sort=False)["k"], found.order.items(), strict=True):
        assert ks[0] == name
        for k, values in zip(ks[1], found.values[found.table["which"] == name], strict=True):
            expected = plain_values(small, set(edges_of(order[:k])), circuit_logits)
            np.testing.assert_allclose(values, expected, atol=2e-5)


@only_on_3
@pytest.mark.parametrize("architecture", few(["gpt2", "llama", "neox"], "llama"))
def test_it_equals_a_run_with_split_inputs(loaded: Callable[[str], mh.Model], architecture: str):
    model = loaded(architecture)
    found = edge_curve(model, PAIRS, attribute_edges(model, PAIRS), sizes=SOME, draws=1)
    for name, order in found.order.items():
        for share, values in zip(SOME, found.values[found.table["which"] == name], strict=True):
            edges = set(edges_of(order[: int(share * len(order))]))
            np.testing.assert_allclose(values, plain_values(model, edges, split_logits), atol=1e-4)


def test_all_edges_give_the_clean_run_and_none_the_corrupted_one(small: mh.Model, monkeypatch: pytest.MonkeyPatch):
    everything = {(s, r) for s, r in edges_of(edge_curve(small, PAIRS, made_scores(small, ())).order["made"])}
    clean = plain_values(small, everything, circuit_logits)
    corrupted = plain_values(small, set(), circuit_logits)
    found = edge_curve(small, PAIRS, made_scores(small, ()), sizes=(0, 1), draws=0)
    for side, expected in ((found.more["empty"], corrupted), (found.more["full"], clean)):
        np.testing.assert_allclose(side, expected, atol=2e-5)
    assert found.table["score"].tolist() == [0, 1]
    # One edge into a query that leads nowhere is missing, so all others are computed.
    wanted = made_scores(small, everything - {("input", "L0H0.q")})
    share = 1 - 1 / EdgeGraph.of(small).n_edges
    almost = edge_curve(small, PAIRS, wanted, sizes=(share, 1), draws=0)
    expected = plain_values(small, everything - {("input", "L0H0.q")}, circuit_logits)
    np.testing.assert_allclose(almost.values[0], expected, atol=2e-5)


def test_all_edges_out_of_some_nodes_are_the_circuit_of_these_nodes(small: mh.Model):
    """In both, what a node outside writes is that of the corrupted run for all that read it."""
    graph = EdgeGraph.of(small)
    for nodes in (["L0H1", "L0.mlp", "L1H2", "L1H3", "L2.mlp"], ["L0H0", "L1H1", "L2H0", "L2H3"], ["L1.mlp"]):
        inside = edges_out_of(graph, "input", *nodes)
        share = (len(inside) + 0.5) / graph.n_edges
        found = edge_curve(small, PAIRS, made_scores(small, inside), sizes=(share, 1), draws=0)
        expected = faithfulness(small, PAIRS, nodes, nodes="all").table["circuit"]
        np.testing.assert_allclose(found.values[0], expected, atol=2e-5)


def test_edges_that_lead_nowhere_are_those_on_no_path():
    rng = np.random.default_rng(0)
    for mlps, parallel in ((True, False), (True, True), (False, False)):
        graph = EdgeGraph(n_layers=2, n_heads=2, mlps=mlps, parallel=parallel)
        for share in (0.1, 0.2, 0.4):
            some = (rng.random(graph.edges.shape) < share) & graph.edges
            edges = [(graph.senders[i], graph.receivers[j]) for i, j in np.argwhere(some)]
            wanted = set()
            paths = [[edge] for edge in edges if edge[0] == "input"]
            while paths:
                path = paths.pop()
                at = path[-1][1]
                if at == "logits":
                    wanted |= set(path)
                node = at if at.endswith(".mlp") else at.split(".")[0]
                paths += [[*path, edge] for edge in edges if edge[0] == node]
            kept = {(graph.senders[i], graph.receivers[j]) for i, j in np.argwhere(graph.connected(some))}
            assert kept == wanted


def test_edges_are_ordered_by_their_absolute_score_or_their_support(llama: mh.Model, scores: EdgeScores):
    absolute = edge_curve(llama, PAIRS, scores, sizes=SOME, draws=0)
    table = scores.table
    parts = zip(table["sender"], table["receiver"], table["input"], strict=True)
    assert absolute.order[scores.name] == tuple(f"{s}->{r}{'.' * bool(i)}{i}" for s, r, i in parts)
    support = edge_curve(llama, PAIRS, scores, sizes=SOME, draws=0, by="support")
    assert support.order[scores.name] != absolute.order[scores.name]
    at = [
        scores.score[scores.senders.index(s), scores.receivers.index(r)]
        for s, r in edges_of(support.order[scores.name])
    ]
    assert at == sorted(at)
    assert absolute.table["k"].tolist() == [int(share * 262) for share in SOME]


def test_prompts_in_parts_and_a_job_give_the_same(llama: mh.Model, scores: EdgeScores):
    whole = edge_curve(llama, PAIRS, scores, sizes=SOME, draws=1)
    parts = mh.settings(budget=Limits(memory=1, tokens=1))(edge_curve)(llama, PAIRS, scores, sizes=SOME, draws=1)
    job = edge_curve(mh.prepare(llama, PAIRS), rankings=scores, sizes=SOME, draws=1)
    for other in (parts, job):
        np.testing.assert_allclose(other.values, whole.values, atol=1e-4)
        assert other.order == whole.order


def test_clean_prompts_are_the_base_run_of_metrics(llama: mh.Model, scores: EdgeScores):
    found = edge_curve(llama, PAIRS, scores, metric=mh.kl_divergence, sizes=SOME, draws=0)
    np.testing.assert_allclose(found.more["full"], 0, atol=1e-6)
    assert (found.more["empty"] > 0.01).all()


def test_it_is_drawn(llama: mh.Model, scores: EdgeScores):
    figure = edge_curve(llama, PAIRS, {"eap": scores}, sizes=SOME, draws=1).plot()
    assert figure.layout.xaxis.title.text == "edges in the circuit, share of all"
    assert any("26 edges in the circuit" in text for trace in figure.data for text in trace.text or ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rankings": None}, r"rankings is missing; give scores of edges, from mh\.patching\.attribute_edges, or"),
        ({"rankings": {}}, "rankings is missing"),
        ({"rankings": ["L0H0"]}, r"rankings\['ranking'\] is a list; give scores of edges"),
        ({"pairs": [" The capital"]}, "a circuit of edges needs mh.PromptPairs"),
        ({"by": "score"}, "by is 'score'"),
        ({"sizes": (0.5,)}, "give at least two shares of all edges"),
        ({"draws": -1}, "draws is -1"),
        ({"metric": lambda logits, context: 0 * logits[:, -1, 0]}, "with all edges and 0 with none"),
    ],
)
def test_bad_requests_are_one_clear_error(llama: mh.Model, scores: EdgeScores, change: dict[str, Any], message: str):
    asked = {"pairs": PAIRS, "rankings": scores} | change
    with pytest.raises(ValueError, match=message):
        edge_curve(llama, **asked)


def test_scores_that_do_not_match_are_one_clear_error(llama: mh.Model, scores: EdgeScores):
    damaged = scores.score.copy()
    damaged[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"rankings\['x'\]: some edges have none"):
        edge_curve(llama, PAIRS, {"x": replace(scores, score=damaged)})
    with pytest.raises(ValueError, match=r"rankings\['x'\] are of 15 senders and 40 receivers, but .* has 16 and 40"):
        edge_curve(llama, PAIRS, {"x": replace(scores, senders=scores.senders[1:])})


@pytest.mark.parametrize("architecture", ["gemma", pytest.param("gemma3", marks=only_on_4)])
def test_a_norm_after_heads_is_one_clear_error(loaded: Callable[[str], mh.Model], architecture: str):
    model = loaded(architecture)
    with pytest.raises(
        ValueError, match=r"layer 0 of .* puts a norm or a factor between .*use mh\.patching\.circuit_c"
    ):
        edge_curve(model, PAIRS, made_scores(model, ()))
