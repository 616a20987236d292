"""Greedy groups of heads against a plain loop: for every candidate a full forward pass through a copy of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

import mechheads as mh
from mechheads.heads import HeadId, matched_heads
from mechheads.runs.head_cache import HeadCache
from mechheads.safety import sahara
from support import oracles, weight_surgery
from support.levels import few
from support.rules import hooks_of, rule_of

REQUESTS = ["When John went to the store", " Paris or Rome", " a big dog gave Mary a book yes", " the no", "I help"]
QUIET: dict[str, Any] = {"template": "bare"}
EVERY = [HeadId(layer, head) for layer in range(3) for head in range(4)]


class Loop:
    """Scores of groups by full forward passes through copies with scaled weights."""

    def __init__(self, model: mh.Model, folder: Path, which: Any, epsilon: float):
        self.folder, self.which, self.epsilon = folder, which, epsilon
        self.load = weight_surgery.load if which == "q" else weight_surgery.separate
        self.rows = weight_surgery.rows(model, REQUESTS)
        intact = self.load(folder)
        self.intact, self.logits = self.states(intact), self.last(intact)
        self.model = intact
        self.weights = {name: weight.clone() for name, weight in intact.state_dict().items()}

    def states(self, model: Any) -> np.ndarray:
        return torch.stack([weight_surgery.state(model, ids) for ids in self.rows]).double().numpy()

    def last(self, model: Any) -> list[torch.Tensor]:
        return [weight_surgery.logits(model, ids)[-1:] for ids in self.rows]

    def without(self, heads: Sequence[HeadId]) -> Any:
        self.model.load_state_dict(self.weights)
        return weight_surgery.scale(self.model, heads, self.which, self.epsilon)

    def angle(self, heads: Sequence[HeadId]) -> float:
        u, v = (
            np.linalg.svd(x, full_matrices=False)[0][:, :1] for x in (self.intact, self.states(self.without(heads)))
        )
        return float(np.degrees(subspace_angles(u, v)).sum())

    def kl(self, heads: Sequence[HeadId]) -> float:
        pairs = zip(self.logits, self.last(self.without(heads)), strict=True)
        return float(np.mean([oracles.kl(a, b) for a, b in pairs]))


def check(
    found: mh.safety.HeadGroup,
    value: Callable[[Sequence[HeadId]], float],
    seed: int,
    atol: float,
) -> None:
    """Every step, choice and number of the comparison by the loop, of three heads."""
    steps, chosen = [], list[HeadId]()
    for step in (1, 2, 3):
        scores = {head: value([*chosen, head]) for head in EVERY if head not in chosen}
        wanted = np.full((3, 4), np.nan)
        for head, score in scores.items():
            wanted[head.layer, head.head] = score
        np.testing.assert_allclose(found.trace.scores.sel(step=step), wanted, atol=atol, rtol=1e-3)
        steps.append(scores)
        chosen.append(max(scores, key=lambda head: scores[head]))
    assert found.heads == tuple(chosen)
    alone = sorted(steps[0], key=lambda head: -steps[0][head])
    for n, row in enumerate(found.table.to_dict("records"), 1):
        random = [value(matched_heads(chosen[:n], chosen[:n], 3, 4, [seed, i])) for i in range(2)]
        wanted = [value(chosen[:n]), value(alone[:n]), np.mean(random), min(random), max(random)]
        got = [row[name] for name in ("group", "singly", "random", "random_low", "random_high")]
        np.testing.assert_allclose(got, wanted, atol=atol, rtol=1e-3)
        assert (row["size"], row["head"]) == (n, str(chosen[n - 1]))
    assert len(found.table) == 3


@pytest.mark.parametrize(
    ("ablation", "which", "epsilon"),
    [("undifferentiated", "q", 0.0), ("undifferentiated", "q", 0.4), ("scaling", "v", 0.4)],
)
def test_each_step_is_one_full_forward_per_candidate_with_the_group_ablated(
    llama: mh.Model, tiny: Callable[[str], Path], ablation: Any, which: Any, epsilon: float
):
    found = mh.settings(seed=4)(sahara)(
        llama, REQUESTS, 3, intervention=rule_of(ablation, epsilon=epsilon), draws=2, **QUIET
    )
    check(found, Loop(llama, tiny("llama"), which, epsilon).angle, 4, atol=0.02)
    assert (found.trace.unit, found.trace.kind, found.trace.name) == (
        "degrees",
        "sahara",
        f"Sahara, {ablation if epsilon else 'uniform'}",
    )


GROWN = [("llama", "scaling", "v"), *((name, "undifferentiated", "q") for name in ("gpt2", "neox", "gemma"))]


@pytest.mark.parametrize("way", few(GROWN, GROWN[0], GROWN[-1]))
def test_ships_can_be_what_grows(
    tiny: Callable[[str], Path], loaded: Callable[[str], mh.Model], way: tuple[str, Any, Any]
):
    """Heads are compared by a number that rounding hardly touches, with an epsilon that twice is not once."""
    name, ablation, which = way
    model = loaded(name)
    found = mh.settings(seed=1)(sahara)(
        model, REQUESTS, 3, score="ships", intervention=rule_of(ablation, epsilon=0.4), draws=2, **QUIET
    )
    check(found, Loop(model, tiny(name), which, 0.4).kl, 1, atol=2e-6)
    assert found.trace.unit == "nats"


def test_means_are_those_of_the_intact_run_at_every_step(llama: mh.Model):
    """A step scores a group as the comparison does, whatever the order in which its heads joined."""
    found = sahara(llama, REQUESTS, 3, intervention="mean", score="ships", draws=0, **QUIET)
    rows = weight_surgery.rows(llama, REQUESTS)
    intact = [oracles.forward(llama, ids)[0] for ids in rows]

    def kl(heads: Sequence[HeadId]) -> float:
        hooks = hooks_of(llama, "mean", heads, REQUESTS)
        pairs = zip(intact, (oracles.forward(llama, ids, hooks)[0] for ids in rows), strict=True)
        return float(np.mean([oracles.kl(a, b) for a, b in pairs]))

    for step in (2, 3):
        before = list(found.heads[: step - 1])
        traced = found.trace.scores.sel(step=step)
        for head in set(EVERY) - set(before):
            assert float(traced[head.layer, head.head]) == pytest.approx(kl([*before, head]), abs=1e-6, rel=1e-3)
    assert found.table["group"].tolist()[2] == pytest.approx(kl(found.heads[::-1]), abs=1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size is 0; it must be 1 to 12, the number of heads to choose from"),
        ({"size": 3, "heads": ["L0H0", "L1H1"]}, "size is 3; it must be 1 to 2"),
        ({"size": 7}, "size is 7, but only 5 other heads are left for random groups"),
        ({"intervention": "resample"}, r"intervention is Resample\(seed=0\), which takes z from another prompt"),
        ({"requests": ["no"]}, "r is 1, but the number of different prompts is 1"),
    ],
)
def test_bad_input_is_named_before_any_head_is_ablated(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
):
    monkeypatch.setattr(HeadCache, "run", None)
    with pytest.raises(ValueError, match=message):
        sahara(llama, **({"requests": REQUESTS, "size": 2} | QUIET | options))
