"""Role curves against numbers worked out on paper and one pass for every gate that is set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.gating import ROLES, Task, head_roles, role_curve
from mechheads.gating.gates import log_probs
from support.gated_micro import HURTS, NEEDED, capitals, log_p
from support.made_gates import made_gates

TEXTS = Task([" The capital of France is", " no", " a big dog"], [" Paris", " yes cat", " gave"], cluster=list("abc"))


def by_hand(kept: float, hurting: float) -> np.ndarray:
    """Gates G+ and G- [seed, layer, head] of the hand-made model: one head facilitates, one interferes."""
    keep, drop = np.full((1, 2, 4), 0.98), np.full((1, 2, 4), 0.02)
    keep[0][NEEDED], drop[0][NEEDED], keep[0][HURTS], drop[0][HURTS] = kept, kept, hurting, hurting
    return np.stack([keep, drop])


def random_gates(model: mh.Model, seeds: int = 3) -> Any:
    rng = np.random.default_rng(0)
    keep, drop = rng.random((2, seeds, model.n_layers, model.n_heads))
    return made_gates(keep, drop)


def test_curves_on_paper(micro: mh.Model) -> None:
    """Only L0H1 (needed) and L1H2 (hurts) change anything: what is left is log p at their gates."""
    g, h = 0.9, 0.1
    gates = made_gates(*by_hand(g, h))
    found = role_curve(micro, capitals(), gates, counts=[0, 1, 7, 8], draws=0)
    lines = found.table.pivot(index="which", columns="k", values="score")
    needed = log_p(micro, 0, h) - log_p(micro, 1, h)
    hurts = log_p(micro, g, 0) - log_p(micro, g, 1)
    everything = log_p(micro, 0, 0) - log_p(micro, 1, 1)
    np.testing.assert_allclose(lines.loc["facilitation"], [0, needed, everything, everything], atol=1e-4)
    np.testing.assert_allclose(lines.loc["interference"].iloc[[0, 1, 3]], [0, hurts, everything], atol=1e-4)
    np.testing.assert_allclose(lines.loc["irrelevance"].iloc[[0, 1, 3]], [0, 0, everything], atol=1e-4)
    assert needed < -4 and hurts > 1


def test_every_point_is_a_pass_with_these_gates(llama: mh.Model) -> None:
    gates = random_gates(llama)
    roles = head_roles(gates)
    counts = [2, 5, 12]
    found = role_curve(llama, TEXTS, gates, counts=counts, draws=2)
    tokens = TEXTS.tokens(llama)
    keep = torch.tensor(gates["keep"].mean(0), dtype=torch.float32)
    for which in (*ROLES, "random 1", "random 2"):
        order = found.order[which]
        if which in ROLES:
            assert order == roles[which].heads(12)
        for k in counts:
            off, on = keep.clone(), keep.clone()
            for head in order[:k]:
                off[head.layer, head.head], on[head.layer, head.head] = 0, 1
            expected = (log_probs(llama, tokens, off[None]) - log_probs(llama, tokens, on[None]))[0].detach()
            row = [*zip(found.table["which"], found.table["k"], strict=True)].index((which, k))
            at = found.table.iloc[row]
            np.testing.assert_allclose(found.values[row], expected, atol=5e-5)
            assert at["score"] == pytest.approx(float(expected.mean()), abs=5e-5)
            assert at["ci_low"] <= at["score"] <= at["ci_high"]
    assert found.order["random 1"] != found.order["random 2"] and len(set(found.order["random 1"])) == 12


def test_the_first_heads_give_what_an_intervention_says(llama: mh.Model) -> None:
    gates, tokens = random_gates(llama), TEXTS.tokens(llama)
    keep = torch.tensor(gates["keep"].mean(0), dtype=torch.float32)
    half = role_curve(llama, TEXTS, gates, counts=[5], draws=1, intervention=mh.patching.Scale(0.5))
    assert half.provenance["intervention"] == "Scale(factor=0.5)"
    for (which, order), values in zip(half.order.items(), half.values, strict=True):
        off, on = keep.clone(), keep.clone()
        for head in order:
            off[head.layer, head.head], on[head.layer, head.head] = 0.5, 1
        expected = (log_probs(llama, tokens, off[None]) - log_probs(llama, tokens, on[None]))[0].detach()
        np.testing.assert_allclose(values, expected, atol=5e-5, err_msg=which)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"counts": [13]}, r"counts are \[13\]; give numbers of heads from 0 to 12, at least one above 0"),
        ({"reduce": "max"}, "reduce is 'max'"),
    ],
)
def test_bad_arguments(llama: mh.Model, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        role_curve(llama, TEXTS, random_gates(llama), **options)


def test_gates_must_be_of_this_model_and_whole(llama: mh.Model, micro: mh.Model) -> None:
    with pytest.raises(
        ValueError, match=r"gates are from a model of \(2, 4\) layers and heads; this model has \(3, 4\)"
    ):
        role_curve(llama, TEXTS, random_gates(micro))
    part = made_gates(np.ones((1, 3, 4)), np.ones((1, 3, 4)), interrupted=True)
    with pytest.raises(ValueError, match="the fit of gates was interrupted"):
        role_curve(llama, TEXTS, part)
