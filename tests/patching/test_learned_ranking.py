"""Learned rankings: gates against plain runs with hooks, and rankings that are better than where they started."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.engine.head_sets import SetRuns
from mechheads.heads import HeadId, Mlp, every_node
from mechheads.limits import Limits
from mechheads.metrics.basic import logit_diff
from mechheads.patching.circuit_curve import SIZES, areas, heads_at
from mechheads.patching.circuits import CircuitRuns, circuit_spec
from mechheads.patching.learned_ranking import _Descent, _Gated, _Scale
from support import oracles
from support.levels import ONE_FIRST, few
from support.texts import PAIRS

ARCHITECTURES = ONE_FIRST


def gated(model: mh.Model, nodes: str, budget: Limits | None = None) -> _Gated:
    spec = circuit_spec(PAIRS, logit_diff, mh.Patch(), budget or Limits(), nodes)
    return _Gated(SetRuns(model, spec))


def plain(model: mh.Model, gates: np.ndarray, prompt: int) -> float:
    """The logit difference of a prompt with gates, from one forward pass of TransformerLens."""
    clean, corrupted = PAIRS.tokens(model)
    ids, there = oracles.ids_of(clean, prompt), oracles.activations(model, oracles.ids_of(corrupted, prompt))
    hooks = []

    def mix(value, hook, other, gate):
        return gate * value + (1 - gate) * other

    n = model.n_layers * model.n_heads
    for layer in range(model.n_layers):
        of_heads = torch.tensor(gates[:n].reshape(model.n_layers, -1)[layer], dtype=torch.float32)[:, None]
        z = oracles.name(layer, "z")
        hooks.append((z, partial(mix, other=there[z], gate=of_heads)))
        at = oracles.mlp(layer)
        hooks.append((at, partial(mix, other=there[at], gate=float(gates[n + layer]))))
    return oracles.logit_diff(oracles.forward(model, ids, hooks)[0], clean, prompt)


def test_gates_equal_runs_with_hooks_and_their_slopes(small):
    ready, n = gated(small, "all"), small.n_layers * (small.n_heads + 1)
    gates = np.random.default_rng(0).uniform(size=n)
    rows = torch.arange(len(PAIRS))
    value, slope = ready(torch.tensor(gates, dtype=torch.float32), rows)
    assert value == pytest.approx(np.mean([plain(small, gates, prompt) for prompt in rows.tolist()]), abs=1e-4)
    step = 0.02
    for node in (1, n - 2):
        more, less = gates.copy(), gates.copy()
        more[node] += step
        less[node] -= step
        ends = [np.mean([plain(small, each, prompt) for prompt in rows.tolist()]) for each in (more, less)]
        assert float(slope[node]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.03, abs=0.02)


def test_gates_of_0_and_1_are_circuits(small):
    nodes = every_node(small.n_layers, small.n_heads)
    inside = frozenset(np.random.default_rng(1).permutation(np.array(nodes, dtype=object))[:8].tolist())
    in_order = [node for kind in (HeadId, Mlp) for node in nodes if isinstance(node, kind)]
    gates = torch.tensor([float(node in inside) for node in in_order])
    spec = circuit_spec(PAIRS, logit_diff, mh.Patch(), Limits(), "all")
    expected = CircuitRuns(small, spec, None).values([inside])[0].mean()
    assert gated(small, "all")(gates, torch.arange(len(PAIRS)))[0] == pytest.approx(expected, abs=1e-4)


class Switch:
    """A metric that the first node turns on, by a smooth step that is flat at 0 and 1; the others push it."""

    def __init__(self, n: int, seed: int) -> None:
        pushes = np.random.default_rng(seed).standard_t(3, n)
        pushes[0] = 0
        up = pushes > 0
        pushes[up] *= 2.5 / pushes[up].sum()
        pushes[~up] *= 1.5 / -pushes[~up].sum()
        self.pushes = torch.tensor(pushes)
        self.job = SimpleNamespace(tokens=range(4), at=torch.zeros(4, 1))

    def __call__(self, gates: torch.Tensor, rows: torch.Tensor) -> tuple[float, torch.Tensor]:
        gate, pushed = float(gates[0]), float(self.pushes @ gates.double())
        slope = gate**2 * (3 - 2 * gate) * self.pushes
        slope[0] = 6 * gate * (1 - gate) * pushed
        return gate**2 * (3 - 2 * gate) * pushed, slope

    def areas(self, logits: np.ndarray) -> tuple[float, float]:
        order, shares = np.argsort(-logits), []
        for size in SIZES:
            gates = torch.zeros(len(logits))
            gates[order[: heads_at(size, len(logits))].copy()] = 1
            shares.append(self(gates, torch.arange(4))[0])
        cpr, cmd = areas(SIZES, np.array(shares))
        return float(cpr), float(cmd)


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_all_others_need_stays_first_though_large_circuits_do_too_much(seed):
    """At 0 and 1 the gate of this node has no gradient, so gradients of circuits with a sharp edge lose it."""
    switch = Switch(300, seed)
    start = np.linspace(-2, 2, 300)[np.concatenate([[299], switch.pushes[1:].argsort().argsort().numpy()])]
    found = {}
    for measure in ("cpr", "cmd"):
        for logits, _ in _Descent(switch, _Scale(0, 1, measure), 150, 2, 0.1, seed).run(start):
            found[measure] = logits
        assert (found[measure] > found[measure][0]).sum() <= 3
    assert switch.areas(start)[0] > 1.5 and switch.areas(found["cpr"])[0] > 0.99 * switch.areas(start)[0]
    assert switch.areas(found["cmd"])[1] < 0.35 * switch.areas(start)[1]


def area(model: mh.Model, ranking: mh.HeadScores, measure: str, nodes: str) -> float:
    curve = mh.patching.circuit_curve(model, PAIRS, ranking, nodes=nodes, draws=1)
    return float(curve.more["areas"].set_index("which").loc[ranking.name, measure])


@pytest.mark.parametrize(("measure", "better"), [("cpr", 1), ("cmd", -1)])
@pytest.mark.parametrize("nodes", few(["heads", "all"], "all"))
def test_a_learned_ranking_is_better_than_its_start(llama, measure, better, nodes):
    """At a rate that is next to nothing, the order stays that of attribution patching."""
    given = {"measure": measure, "nodes": nodes}
    start = mh.patching.learn_ranking(llama, PAIRS, updates=1, lr=1e-9, **given)
    found = mh.patching.learn_ranking(llama, PAIRS, updates=60, lr=0.2, **given)
    by_steps = mh.patching.attribution_patch(llama, PAIRS, direction="noising", steps=5, nodes=nodes) * -1
    assert start.heads(12) == by_steps.heads(12)
    assert better * area(llama, found, measure, nodes) > better * area(llama, start, measure, nodes)
    assert (found.mlps is not None) == (nodes == "all")
    assert len(found.provenance["faithfulness"]) == 60


def test_other_ablations_and_seeds(llama):
    given = {"ablation": mh.Mean(), "updates": 5}
    one, again, other = (mh.settings(seed=seed)(mh.patching.learn_ranking)(llama, PAIRS, **given) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.scores, again.scores)
    assert (one.scores != other.scores).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"measure": "f"}, "measure is 'f'; choose one of 'cpr', 'cmd'"),
        ({"updates": 0}, "updates is 0; it must be at least 1"),
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"lr": 0}, "lr is 0; give a learning rate above 0"),
        ({"metric": "accuracy"}, "metric accuracy has no gradient"),
    ],
)
def test_bad_arguments_are_refused(llama, given, message):
    with pytest.raises(ValueError, match=message):
        mh.patching.learn_ranking(llama, PAIRS, **given)
