"""Effects of ablation on a task, against one full pass for each head."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.gating import Task, roles
from mechheads.gating.roles import ablation_effects
from support import gated_micro, oracles
from support.gated_micro import HURTS, NEEDED, capitals, log_p

TEXTS = Task(
    [" The capital of France is", " no", " a big dog gave", " one two"],
    [" Paris", " yes cat", " dog", " three one two"],
    cluster=list("aabc"),
)
WORDS = TEXTS.items([0, 2])


def one_by_one(model: mh.Model, task: Task, head: tuple[int, int], kind: str, seed: int = 0) -> np.ndarray:
    """Change of each item's mean log-probability: a full pass of each alone, the head's z replaced by hand."""
    tokens = task.tokens(model)
    rows = [oracles.ids_of(tokens, item)[:, :-1] for item in range(len(tokens))]
    z = [oracles.activations(model, ids)[oracles.name(head[0], "z")][0, :, head[1]] for ids in rows]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    changes = []
    for item, ids in enumerate(rows):
        if kind == "zero":
            new = torch.zeros_like(z[item])
        elif kind == "mean":
            new = torch.cat(z).mean(0).expand_as(z[item])
        else:
            donor = z[order.roll(1)[order == item].item()]
            new = donor[torch.arange(ids.shape[1]).clamp(max=len(donor) - 1)]
        target = tokens.ids[item][tokens.is_target[item]]
        intact, ablated = (
            logits[0, -len(target) :].log_softmax(-1)[torch.arange(len(target)), target].mean()
            for logits in (oracles.forward(model, ids), oracles.with_z(model, ids, *head, new))
        )
        changes.append(float(ablated - intact))
    return np.array(changes)


@pytest.mark.parametrize("task", [TEXTS, WORDS], ids=["several tokens", "one token"])
def test_effects_are_those_of_full_passes(llama: mh.Model, task: Task) -> None:
    heads = [(0, 1), (1, 2), (2, 3)]
    for kind in ("zero", "mean", "resample"):
        effect = mh.settings(seed=3)(ablation_effects)(llama, task, intervention=kind, heads=heads)
        assert effect.values is not None and np.isfinite(effect.scores.values).sum() == 3
        for head in heads:
            expected = one_by_one(llama, task, head, kind, seed=3)
            np.testing.assert_allclose(effect.values.values[head], expected, atol=2e-5, err_msg=kind)
            assert abs(expected).max() > 1e-3


def test_effects_on_paper(micro: mh.Model) -> None:
    effect = ablation_effects(micro, capitals())
    intact = log_p(micro, 1, 1)
    assert effect[NEEDED]["score"] == pytest.approx(log_p(micro, 0, 1) - intact, abs=1e-4)
    assert effect[HURTS]["score"] == pytest.approx(log_p(micro, 1, 0) - intact, abs=1e-4)
    assert effect[NEEDED]["score"] < -4 and effect[HURTS]["score"] > 1
    assert all(effect[head]["score"] == 0 for head in gated_micro.DEAD)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"intervention": "half"}, "intervention is 'half'; choose one of 'patch', 'zero', 'mean', 'resample'"),
        ({"reduce": "max"}, "reduce is 'max'"),
    ],
)
def test_bad_arguments(llama: mh.Model, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roles, "run_spec", None)  # what is wrong is said before anything is run
    with pytest.raises(ValueError, match=said):
        ablation_effects(llama, **{"task": TEXTS, **options})
