"""Circuits of heads and MLPs against full forward passes in which everything else is replaced."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import mechheads as mh
from mechheads.heads import Mlp, Node, every_node
from mechheads.patching import faithfulness
from support import oracles
from support.levels import ONE_FIRST
from support.made_workers import MadeWorkers
from support.texts import CLEAN, PAIRS

ARCHITECTURES = ONE_FIRST

CIRCUITS = [["L0H1", "L1.mlp", "L2H3"], ["L0.mlp", "L1.mlp", "L2.mlp"], ["L1H0", "L1H2"]]


def without(model: mh.Model, prompt: int, circuit: Iterable[Node]) -> float:
    """The logit difference of a prompt whose nodes outside the circuit come from the corrupted run."""
    clean, corrupted = PAIRS.tokens(model)
    there = oracles.activations(model, oracles.ids_of(corrupted, prompt))
    kept = set(circuit)

    def heads(z: Tensor, hook: Any, layer: int) -> Tensor:
        z = z.clone()
        for head in range(model.n_heads):
            if mh.HeadId(layer, head) not in kept:
                z[0, :, head] = there[oracles.name(layer, "z")][0, :, head]
        return z

    def mlp(output: Tensor, hook: Any, layer: int) -> Tensor:
        return output if Mlp(layer) in kept else there[oracles.mlp(layer)]

    layers = range(model.n_layers)
    hooks = [(oracles.name(layer, "z"), partial(heads, layer=layer)) for layer in layers]
    hooks += [(oracles.mlp(layer), partial(mlp, layer=layer)) for layer in layers]
    logits = oracles.forward(model, oracles.ids_of(clean, prompt), hooks)[0]
    return oracles.logit_diff(logits, clean, prompt)


def share(model: mh.Model, circuit: Iterable[Node]) -> float:
    prompts = range(len(CLEAN))
    every = every_node(model.n_layers, model.n_heads)
    found, full, empty = (
        np.mean([without(model, prompt, nodes) for prompt in prompts]) for nodes in (circuit, every, ())
    )
    return float((found - empty) / (full - empty))


@pytest.mark.parametrize("names", CIRCUITS)
def test_faithfulness_of_nodes_equals_full_forwards(small: mh.Model, names: list[str]):
    found = faithfulness(small, PAIRS, names, nodes="all")
    assert list(map(str, found.heads)) == names and "heads and MLPs" in repr(found)
    assert found.score == pytest.approx(share(small, found.heads), abs=1e-3)


def test_all_nodes_are_the_model_and_none_is_the_corrupted_run(small: mh.Model):
    every = every_node(small.n_layers, small.n_heads)
    whole, none = (faithfulness(small, PAIRS, nodes, nodes="all") for nodes in (every, ()))
    assert whole.score == pytest.approx(1) and none.score == pytest.approx(0)
    heads = faithfulness(small, PAIRS, [node for node in every if isinstance(node, mh.HeadId)])
    np.testing.assert_allclose(whole.table["full"], heads.table["full"], atol=1e-5)


def test_workers_give_the_same_circuits(llama: mh.Model):
    alone, several = (
        mh.settings(workers=workers)(faithfulness)(llama, PAIRS, CIRCUITS[0], nodes="all").score
        for workers in (None, MadeWorkers(2))
    )
    assert several == pytest.approx(alone, abs=1e-6)


@pytest.mark.parametrize(
    ("heads", "nodes", "message"),
    [
        (["L1.mlp"], "heads", 'heads contains L1.mlp; for circuits .* give nodes="all"'),
        (["L9.mlp"], "all", "L9.mlp is out of range: this model has layers 0..2"),
        (["L1.mlp", "L1.mlp"], "all", "heads contains L1.mlp twice"),
        (["L1.mlps"], "all", "is not a head"),
        ([], "everything", "nodes is 'everything'"),
    ],
)
def test_bad_nodes_are_one_clear_error(llama: mh.Model, heads: list[str], nodes: Any, message: str):
    with pytest.raises(ValueError, match=message):
        faithfulness(llama, PAIRS, heads, nodes=nodes)
